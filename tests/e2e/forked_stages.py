"""``vllm-specext train`` whose stages of one process find vLLM imported already: they are forked from the command's own
process, which is a fork itself (``vllm_specext/measure/forks.py``). So is the target beside a training. A stage of
several processes is started as ever, by torch's launcher.
"""

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
from vllm_specext.training.pipeline import launcher, streaming

_forks = multiprocessing.get_context("fork")


def main(*arguments: str) -> None:
    processes: Any = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL, PIPE=subprocess.PIPE)
    launcher.subprocess = streaming.subprocess = processes  # type: ignore[attr-defined]
    run_program(PROGRAM, arguments)


def start(command: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Any:
    python, option, module, *arguments = command
    assert (python, option) == (sys.executable, "-m")
    if module.startswith("torch."):
        return subprocess.Popen(command, env=env, **options)
    return Stage(module, arguments, env, options.get("stdout"), options.get("stderr"))


class Stage:
    """What a training uses of ``subprocess.Popen``."""

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        output: int | None,
        errors: IO[bytes] | None,
    ) -> None:
        streams = {2: errors.fileno()} if errors is not None else {}
        said, output_end = os.pipe() if output == subprocess.PIPE else (None, None)
        if output_end is not None:
            streams[1] = output_end
        self._process = _forks.Process(target=_run, args=(module, list(arguments), streams, dict(environment)))
        self._process.start()
        if said is not None and output_end is not None:
            os.close(output_end)
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

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def _run(module: str, arguments: list[str], streams: Mapping[int, int], environment: dict[str, str]) -> None:
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    for stream, file in {0: os.open(os.devnull, os.O_RDONLY), **streams}.items():
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
