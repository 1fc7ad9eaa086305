"""Calls in processes that find vLLM imported already (``vllm_specext/measure/forks.py``).

Not for work that starts processes of its own by spawning, and not beside a GPU.
"""

import multiprocessing
import os
import pkgutil
import subprocess
from collections.abc import Mapping, Sequence
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from vllm_specext.measure.arguments import on_gpu
from vllm_specext.measure.forks import PROGRAM, run_program, start_forking
from vllm_specext.measure.forks import Fork as _Fork

ROOT = Path(__file__).parents[1]
COMMAND = f"{run_program.__module__}:{run_program.__name__}"
_server: Any = forkserver._forkserver
_server.set_forkserver_preload(["tests.preloaded"])


class Fork(_Fork):
    """Its own forks are forked from the same process as it is. Else that would have to import vLLM once more."""

    def __init__(self, function: str, arguments: Sequence[Any], **options: Any) -> None:
        super().__init__(f"{__name__}:{_run_beside.__name__}", [where_to_fork(), function, *arguments], **options)


Place = tuple[bytes | None, str] | None
"""Key and address of the process that forks. Python has such keys from 3.14 on."""


def where_to_fork() -> Place:
    """The process that forks for this one, which is started if there is none yet. None beside a GPU."""
    if on_gpu():
        return None
    start_forking()
    return getattr(_server, "_forkserver_authkey", None), _server._forkserver_address


def fork_at(place: Place) -> None:
    """Start no process that forks, but let that at ``place`` do it, for as long as it is there."""
    if place is None:
        return
    _server._forkserver_authkey, _server._forkserver_address = place
    _server.ensure_running = forkserver.ensure_running = lambda: None
    if _server._forkserver_alive_fd is None:  # each fork takes one along, to hold what it hears of who started it
        _server._forkserver_alive_fd = os.open(os.devnull, os.O_WRONLY)


def _run_beside(place: Place, function: str, *arguments: Any) -> None:
    fork_at(place)
    pkgutil.resolve_name(function)(*arguments)


def context() -> Any:
    """Of ``multiprocessing``, for processes of a test's own."""
    return multiprocessing.get_context("forkserver")


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
    stdout, stderr = (streams.with_name(f"{streams.name}.{name}") for name in ("stdout", "stderr"))
    for file in (stdout, stderr):
        file.unlink(missing_ok=True)
    fork = Fork(function, arguments, environment=environment, stdout=stdout, stderr=stderr, folder=folder)
    try:
        code = fork.wait(seconds)
    except subprocess.TimeoutExpired:
        fork.kill()
        code = fork.wait()
    return subprocess.CompletedProcess(function, code, *(file.read_text(errors="replace") for file in (stdout, stderr)))


def run_code(code: str, folder: Path, environment: Mapping[str, str] | None = None) -> str:
    """The last line that ``code`` prints. Files go to ``folder``."""
    environment = os.environ if environment is None else environment
    globals_ = {"__name__": "__main__"}
    done = run(
        "builtins:exec", code, globals_, environment=environment, folder=folder, streams=folder / "code", seconds=300
    )
    assert done.returncode == 0, done.stderr
    return str(done.stdout.splitlines()[-1])


def run_command(
    *arguments: str, environment: Mapping[str, str], streams: Path, folder: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The command ``vllm-specext`` with these ``arguments``, whose processes find vLLM imported too."""
    folder = folder or Path.cwd()
    return run(COMMAND, PROGRAM, arguments, environment=environment, folder=folder, streams=streams, seconds=1800)
