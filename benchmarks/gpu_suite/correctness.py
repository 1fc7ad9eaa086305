"""The part ``correctness``: the project's own tests of its kernels that need a GPU."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from benchmarks.gpu_suite.machine import ROOT

LISTED_FAILURES = 20


def rows(tests: Path = ROOT / "tests" / "kernels", marker: str = "gpu") -> Iterator[dict[str, Any]]:
    """Counts by file, and the failures by name: a file after the other, so that a limit costs the last one only."""
    for file in sorted(tests.glob("test_*.py")):
        if f"mark.{marker}" in file.read_text():
            yield from of_file(file, marker)


def of_file(file: Path, marker: str) -> Iterator[dict[str, Any]]:
    # Compiling is most of it, and that is the host's work.
    side_by_side = ["-n", str(min(8, os.cpu_count() or 1))] if find_spec("xdist") else []
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(file), "-m", marker, "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [*command, f"--junitxml={report}", *side_by_side], cwd=ROOT, capture_output=True, text=True, check=False
        )
        if done.returncode not in (0, 1) or not report.exists():
            message = (done.stdout + done.stderr)[-2000:]
            yield {"file": file.stem, "passed": 0, "failed": 1, "skipped_tests": 0, "wrong": True, "message": message}
            return
        yield from counted(ElementTree.parse(report))


def counted(report: "ElementTree.ElementTree[Any]") -> Iterator[dict[str, Any]]:
    """Rows from pytest's report."""
    counts: dict[str, dict[str, int]] = {}
    failures = []
    for case in report.iter("testcase"):
        file = case.attrib["classname"].rsplit(".", 1)[-1]
        of_file = counts.setdefault(file, {"passed": 0, "failed": 0, "skipped_tests": 0})
        if case.find("failure") is not None or case.find("error") is not None:
            of_file["failed"] += 1
            problem = case.find("failure") if case.find("failure") is not None else case.find("error")
            assert problem is not None
            failures.append({"test": case.attrib["name"], "message": problem.attrib.get("message", "")[:300]})
        elif case.find("skipped") is not None:
            of_file["skipped_tests"] += 1
        else:
            of_file["passed"] += 1
    for file, of_file in counts.items():
        yield {"file": file, **of_file, "wrong": of_file["failed"] > 0 or of_file["passed"] == 0}
    for failure in failures[:LISTED_FAILURES]:
        yield {"file": "failure", **failure, "wrong": True}
    if not counts:
        yield {"file": "all", "passed": 0, "failed": 0, "skipped_tests": 0, "wrong": True, "message": "no test ran"}
