"""Processes that find vLLM imported already: they are forked from one that has done nothing but import it.

The import takes more processor time than a small server's whole start, and a server imports three times: for itself,
its engine and its worker. What runs here has a process of its own all the same: its own environment, its own patches,
its own end. Beside a GPU nothing is forked, because its driver does not survive a fork: there processes are fresh ones.
"""

import atexit
import io
import multiprocessing
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from vllm_specext.measure.arguments import on_gpu

PROGRAM = "vllm_specext.cli:main"
"""What ``vllm-specext`` calls."""
STREAMS = (1, 2)
"""The descriptors of standard output and standard error."""
_get_context = multiprocessing.get_context
_forks, _fresh = _get_context("forkserver"), _get_context("spawn")
_forks.set_forkserver_preload(["vllm_specext.measure.preloaded"])


class Fork:
    """A process that calls ``function``, a "module:name", with ``environment`` for its own and its output in files.
    It has the part of ``subprocess.Popen`` that is used here, and leads a session."""

    def __init__(
        self,
        function: str,
        arguments: Sequence[Any],
        *,
        environment: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        folder: Path | None = None,
    ) -> None:
        self.args = function
        files = (str(stdout), str(stderr))
        given = (function, tuple(arguments), dict(environment), str(folder or Path.cwd()), files)
        self._process: BaseProcess
        if on_gpu():
            self._process = _fresh.Process(target=_in_child, args=given)
        else:
            start_forking()
            self._process = _forks.Process(target=_in_child, args=given)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        code = self._process.exitcode
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(self.args, timeout)
        return code

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        self._process.kill()


def fork_command(
    arguments: Sequence[str], *, environment: Mapping[str, str], log: Path, folder: Path | None = None
) -> Fork:
    """The command ``vllm-specext`` with these ``arguments``; all that it prints goes to ``log``."""
    given = [PROGRAM, arguments]
    return Fork(f"{__name__}:run_program", given, environment=environment, stdout=log, stderr=log, folder=folder)


def run_program(function: str, arguments: Sequence[str]) -> None:
    """In a fork: what a program does that calls ``function`` with these arguments in ``sys.argv``."""
    find_all_imported()
    sys.argv = [function, *arguments]
    pkgutil.resolve_name(function)()


def find_all_imported() -> None:
    """In a fork: let the processes that it starts by "spawn" be forks of it. vLLM starts its engine and its workers so
    on a CPU, and by "fork" elsewhere."""
    multiprocessing.get_context = _forking
    os.register_at_fork(after_in_child=_take_threads)


def start_forking() -> None:
    """Start the process that forks, if there is none yet."""
    with _silence():
        forkserver.ensure_running()


@contextmanager
def _silence() -> Iterator[None]:
    """Let nobody hear what the process says that forks: the notes of what it imports, and that it clears shared memory
    of a server which was told to end."""
    kept = [os.dup(stream) for stream in STREAMS]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        for stream in STREAMS:
            os.dup2(nowhere, stream)
        yield
    finally:
        for stream, own in zip(STREAMS, kept, strict=True):
            os.dup2(own, stream)
            os.close(own)
        os.close(nowhere)


def _in_child(
    function: str, arguments: tuple[Any, ...], environment: dict[str, str], folder: str, files: tuple[str, str]
) -> None:
    os.setsid()
    for stream, file in zip(STREAMS, files, strict=True):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), stream)
    for output in (sys.stdout, sys.stderr):
        assert isinstance(output, io.TextIOWrapper)
        output.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    try:
        pkgutil.resolve_name(function)(*arguments)
    finally:
        atexit._run_exitfuncs()  # which processes of `multiprocessing` leave out


def _forking(method: str | None = None) -> Any:
    return _get_context("fork" if method == "spawn" else method)


def _take_threads() -> None:
    """The number that vLLM sets for a worker in the environment, which OpenMP reads in a fresh process only."""
    if "OMP_NUM_THREADS" in os.environ:
        take_threads()


def take_threads() -> None:
    """In a fork that starts no processes: as many threads as a fresh process would have."""
    import torch

    threads = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(threads) if threads.isdecimal() else len(os.sched_getaffinity(0)))
