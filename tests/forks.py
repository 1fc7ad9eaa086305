"""Processes that find vLLM imported already: they are forked from one that has done nothing but import it.

The import takes more processor time than a small engine's whole work. What runs here has a process of its own all the
same: its own environment, its own patches, its own end. Not for work that starts processes of its own by spawning, and
not beside a GPU.
"""

import atexit
import multiprocessing
import os
import pkgutil
import subprocess
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(["tests.preloaded"])


def run(
    function: str,
    *arguments: Any,
    environment: Mapping[str, str],
    folder: Path,
    streams: Path,
    seconds: float,
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` would for a program that calls ``function``, a "module:name", with ``environment`` in
    ``folder``.

    What it prints goes to files whose names begin with ``streams``.
    """
    _start_server()
    files = [streams.with_name(f"{streams.name}.{name}") for name in ("stdout", "stderr")]
    process = _processes.Process(target=_in_child, args=(function, arguments, dict(environment), folder, files))
    process.start()
    process.join(seconds)
    if process.is_alive():
        process.kill()
        process.join()
    stdout, stderr = (file.read_text(errors="replace") for file in files)
    assert process.exitcode is not None
    return subprocess.CompletedProcess(function, process.exitcode, stdout, stderr)


def _start_server() -> None:
    """From wherever pytest was started, it has to find ``tests``."""
    outer = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), outer)))
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        if outer is not None:
            os.environ["PYTHONPATH"] = outer


def _in_child(
    function: str,
    arguments: tuple[Any, ...],
    environment: dict[str, str],
    folder: Path,
    files: list[Path],
) -> None:
    for stream, file in zip((1, 2), files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    try:
        pkgutil.resolve_name(function)(*arguments)
    finally:
        atexit._run_exitfuncs()  # which processes of `multiprocessing` leave out
