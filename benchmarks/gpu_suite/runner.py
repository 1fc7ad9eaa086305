"""Runs parts one after another within a budget of seconds, each in a process of its own, and keeps what they yield."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite.machine import ROOT, digest
from benchmarks.gpu_suite.parts import Part
from benchmarks.gpu_suite.store import DONE, Store

VERSIONS = ("gpu", "driver", "torch", "triton", "vllm")
LOG_LINES = 25


def run_all(
    parts: Iterable[Part],
    store: Store,
    machine: dict[str, Any],
    *,
    budget: float,
    again: bool,
    order: list[str],
    tell: Callable[[str], None],
    run: Callable[[Part, float], dict[str, Any]] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, str]:
    """What became of each part. ``machine`` describes it; ``run`` is ``run_part``."""
    run = run or run_part
    end = clock() + budget
    became: dict[str, str] = {}
    for part in parts:
        key = {"sources": digest(part.sources), **{name: machine.get(name) for name in VERSIONS}}
        left = end - clock()
        if not again and store.is_done(part.name, key):
            became[part.name] = "done before"
        elif part.needs and find_spec(part.needs) is None:
            became[part.name] = f"not run: {part.needs} is not installed"
        elif left < part.least:
            became[part.name] = f"not run: {left:.0f} s are left and it needs {part.least:.0f}"
        else:
            tell(f"{part.name}: {part.about}")
            result = run(part, min(left, part.limit))
            date = datetime.now(UTC).isoformat(timespec="seconds")
            store.keep(part.name, {"key": key, "machine": machine, "date": date, **result}, order)
            became[part.name] = f"{result['status']}, {len(result['rows'])} rows, {result['seconds']:.0f} s"
            if result["status"] != DONE:
                became[part.name] += f"\n{result['message']}"
        tell(f"{part.name}: {became[part.name]}")
    return became


def run_part(part: Part, seconds: float) -> dict[str, Any]:
    """``status`` is ``done``, ``stopped`` at the end of its time, or ``failed``; rows are kept in any case."""
    with tempfile.TemporaryDirectory() as folder:
        path, log = Path(folder) / "rows", Path(folder) / "log"
        path.touch()
        command = [sys.executable, "-m", "benchmarks.gpu_suite", "--one", part.name, "--rows", str(path)]
        begun = time.monotonic()
        with log.open("wb") as out:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code: int | None = process.wait(seconds)
            except subprocess.TimeoutExpired:
                code = None
            finally:
                _end(process)
        took = time.monotonic() - begun
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
        status = DONE if code == 0 else "stopped" if code is None else "failed"
        message = "" if code == 0 else _last_lines(log) if code else f"out of time after {took:.0f} s"
        return {"status": status, "seconds": round(took, 1), "rows": rows, "message": message}


def write_rows(part: Part, path: Path) -> None:
    """What runs in the part's own process: a line per row, on disk before the next is measured."""
    with path.open("w") as file:
        for row in part.rows():
            file.write(json.dumps(row) + "\n")
            file.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """With all it started; it leads a group of its own."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _last_lines(log: Path) -> str:
    return "\n".join(log.read_text(errors="replace").rstrip().splitlines()[-LOG_LINES:])
