"""A part in a process of its own, which leaves its rows in a file as they come."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite import gate
from benchmarks.gpu_suite.machine import ROOT
from benchmarks.gpu_suite.parts import Part
from benchmarks.gpu_suite.store import DONE

LOG_LINES = 25
INTERRUPTED = "interrupted"
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
"""Torch would have a thread on every core in each of the processes that run side by side, tests and engines. Those
wait for one another busily: on two cores, a test took six times as long in four processes of 16 threads as of one."""


class PartProcess:
    def __init__(self, part: Part) -> None:
        """Starts it; a part that starts slowly waits at its gate."""
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        self._rows, self._log, self._gate = (folder / name for name in ("rows", "log", "gate"))
        self._rows.touch()
        self._gate.mkdir()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.gpu_suite", "--one", part.name, "--rows", str(self._rows)],
                cwd=ROOT,
                env=ONE_THREAD | os.environ | {gate.VARIABLE: str(self._gate)},
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.PIPE,  # which ends with this process, however it does
                start_new_session=True,
            )

    def is_ready(self) -> bool:
        """Whether it waits to measure, or has ended."""
        return (self._gate / gate.READY).exists() or self._process.poll() is not None

    def measure(self, seconds: float) -> dict[str, Any]:
        """Let it measure for so many ``seconds`` at most, and end it. ``status`` is ``done``, ``stopped`` at the end of
        its time, ``interrupted`` with the suite, or ``failed``; ``rows`` are kept in any case, ``message`` says why it
        was not done."""
        begun, ended = time.monotonic(), "stopped"
        (self._gate / gate.OPEN).touch()
        try:
            code: int | None = self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            code = None
        except KeyboardInterrupt:
            code, ended = None, INTERRUPTED
        finally:
            self._kill()
        took = time.monotonic() - begun
        rows = [json.loads(line) for line in self._rows.read_text().splitlines() if line.endswith("}")]
        status = DONE if code == 0 else ended if code is None else "failed"
        message = "" if code == 0 else self._last_lines() if code else f"{ended} after {took:.0f} s"
        return {"status": status, "seconds": round(took, 1), "rows": rows, "message": message}

    def end(self) -> None:
        """End it before it has measured."""
        self._kill()

    def _kill(self) -> None:
        """With all it started; it leads a group of its own."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._process.stdin is not None:
            self._process.stdin.close()

    def _last_lines(self) -> str:
        return "\n".join(self._log.read_text(errors="replace").rstrip().splitlines()[-LOG_LINES:])


def end_with_suite() -> None:
    """In the part's own process: have it end, with all that it starts, when the suite does. A suite that is killed, as
    at the end of a command's time, would leave engines that wait for it and hold the GPU's memory."""
    if gate.VARIABLE in os.environ:
        threading.Thread(target=_wait_for_the_end, daemon=True).start()


def _wait_for_the_end() -> None:
    while os.read(sys.stdin.fileno(), 1):
        pass
    os.killpg(os.getpgrp(), signal.SIGKILL)


def write_rows(part: Part, path: Path) -> None:
    """What runs in the part's own process: a line per row, on disk before the next is measured."""
    end_with_suite()
    with path.open("w") as file:
        for row in part.rows():
            file.write(json.dumps(row) + "\n")
            file.flush()
