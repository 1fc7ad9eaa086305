"""The part ``correctness``: the project's own tests of its kernels that need a GPU."""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite import pytest_log
from benchmarks.gpu_suite.machine import ROOT

LISTED_FAILURES = 20
MOST_WORKERS = 16
PAUSE = 0.5
NO_VLLM = "No module named 'vllm'"

Line = dict[str, Any]


def rows(tests: Path = ROOT / "tests" / "kernels", marker: str = "gpu") -> Iterator[dict[str, Any]]:
    """Counts by file, and the failures by name: a file as soon as all its tests have ended."""
    with tempfile.TemporaryDirectory() as folder:
        log, out = Path(folder) / "lines", Path(folder) / "out"
        log.touch()
        with out.open("wb") as file:
            process = subprocess.Popen(
                [*command(marker), *map(str, sorted(tests.glob("test_*.py")))],
                cwd=ROOT,
                env=os.environ | {pytest_log.VARIABLE: str(log)},
                stdout=file,
                stderr=subprocess.STDOUT,
            )
            yield from of_files(_lines(log, process))
        if process.returncode not in (0, 1):
            message = out.read_text(errors="replace")[-1000:]
            yield {"file": "pytest", "passed": 0, "failed": 1, "skipped_tests": 0, "wrong": True, "message": message}


def command(marker: str) -> list[str]:
    """Of pytest. Compiling is most of the work, which is the host's, so that one file's tests go to all workers."""
    workers = ["-n", str(min(MOST_WORKERS, os.cpu_count() or 1)), "--dist", "worksteal"] if find_spec("xdist") else []
    options = ["-m", marker, "-q", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    return [sys.executable, "-m", "pytest", "-p", pytest_log.__name__, *options, *workers]


def of_files(lines: Iterable[Line]) -> Iterator[dict[str, Any]]:
    """Rows from the lines that ``pytest_log`` writes."""
    left: dict[str, set[str]] = {}
    ended: dict[str, list[Line]] = {}
    needing_vllm: set[str] = set()
    for line in lines:
        if "tests" in line:
            for test in line["tests"]:
                left.setdefault(_file(test), set()).add(test)
            continue
        file = _file(line["test"])
        if NO_VLLM in line["message"] and find_spec("vllm") is None:
            needing_vllm.add(file)
            continue
        ended.setdefault(file, []).append(line)
        left.setdefault(file, set()).discard(line["test"])
        if not left[file]:
            yield from counted(file, ended[file], 0)
    for file in (file for file in left if left[file]):
        yield from counted(file, ended.get(file, []), len(left[file]))
    yield from ({"file": file, "skipped": "needs vllm"} for file in sorted(needing_vllm))
    if not left:
        yield {"file": "all", "passed": 0, "failed": 0, "skipped_tests": 0, "wrong": True, "message": "no test ran"}


def counted(file: str, lines: list[Line], missing: int) -> Iterator[dict[str, Any]]:
    """Of a file, of which so many tests have not ended."""
    outcomes = [line["outcome"] for line in lines]
    failures = [line for line in lines if line["outcome"] == "failed"]
    row = {"file": file, "passed": outcomes.count("passed"), "failed": len(failures)}
    row |= {"skipped_tests": outcomes.count("skipped")}
    row |= {"seconds": round(sum(line.get("seconds", 0.0) for line in lines), 1)}
    row["wrong"] = bool(failures or missing or not row["passed"])
    yield row | ({"message": f"{missing} tests have not ended"} if missing else {})
    for line in failures[:LISTED_FAILURES]:
        test = line["test"].partition("::")[2] or file
        yield {"file": "failure", "test": test, "message": line["message"], "wrong": True}


def _file(test: str) -> str:
    return Path(test.partition("::")[0]).stem


def _lines(log: Path, process: subprocess.Popen[bytes]) -> Iterator[Line]:
    """Those in ``log``, as they come, until ``process`` has ended."""
    with log.open() as file:
        while True:
            has_ended = process.poll() is not None
            begun = file.tell()
            if (text := file.readline()).endswith("\n"):
                yield json.loads(text)
                continue
            file.seek(begun)
            if has_ended:
                return
            time.sleep(PAUSE)
