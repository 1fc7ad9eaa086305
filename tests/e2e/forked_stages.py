"""``vllm-specext train`` whose stages of one process find vLLM imported already: they are forked from the command's own
process, which is a fork itself (``vllm_specext/measure/forks.py``). A stage of several processes is started as ever, by
torch's launcher."""

import atexit
import io
import multiprocessing
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import IO, Any

from vllm_specext.measure.forks import PROGRAM, run_program
from vllm_specext.training.pipeline import launcher

_forks = multiprocessing.get_context("fork")


def main(*arguments: str) -> None:
    launcher.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE)  # type: ignore[assignment]
    run_program(PROGRAM, arguments)


def start(command: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **options: Any) -> Any:
    python, option, module, *arguments = command
    assert (python, option) == (sys.executable, "-m")
    if module.startswith("torch."):
        return subprocess.Popen(command, stderr=stderr, env=env, **options)
    return Stage(module, arguments, stderr.fileno(), env)


class Stage:
    """What the launcher uses of ``subprocess.Popen``."""

    def __init__(self, module: str, arguments: Sequence[str], errors: int, environment: Mapping[str, str]) -> None:
        said, output = os.pipe()
        given = (module, list(arguments), output, errors, dict(environment))
        self._process = _forks.Process(target=_run, args=given)
        self._process.start()
        os.close(output)
        self.stdout = os.fdopen(said, "rb")
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self) -> int:
        self._process.join()
        assert self._process.exitcode is not None
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _run(module: str, arguments: list[str], output: int, errors: int, environment: dict[str, str]) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for stream, file in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, errors)):
        os.dup2(file, stream)
    for text in (sys.stdout, sys.stderr):
        assert isinstance(text, io.TextIOWrapper)
        text.reconfigure(line_buffering=True)
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = arguments
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    finally:
        atexit._run_exitfuncs()
