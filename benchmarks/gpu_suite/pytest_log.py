"""A plugin of pytest that writes a line for every test as it ends, so that a run that is stopped leaves what it has.

The first line lists the tests that are to run, ``{"tests": [...]}``; every other line is ``{"test": name, "outcome":
"passed" | "failed" | "skipped", "seconds": number, "message": text}``. Where several workers run, it is their
controller that writes. A worker whose GPU context is broken ends, and pytest starts another: all its other tests would
fail as well, and at once, so that it would take those of all other workers too.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "GPU_SUITE_PYTEST_LOG"
"""Names the file."""
MOST_CHARACTERS = 300


class Log:
    def __init__(self, path: Path) -> None:
        self._file = path.open("w")
        self._listed = False
        self._troubles: dict[str, pytest.TestReport] = {}
        """What did not pass of tests that have not ended."""
        self._seconds: dict[str, float] = {}
        """Of the same tests, so far."""

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        self._list(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._list([item.nodeid for item in session.items])

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._write({"test": report.nodeid, "outcome": "failed", "message": _shortened(report)})

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            self._troubles.setdefault(report.nodeid, report)
        self._seconds[report.nodeid] = self._seconds.get(report.nodeid, 0.0) + report.duration
        if report.when not in ("setup", "call"):  # after its teardown, or where its worker has died
            told = self._troubles.pop(report.nodeid, report)
            message = "" if told.passed else _shortened(told)
            seconds = round(self._seconds.pop(report.nodeid), 2)
            self._write({"test": report.nodeid, "outcome": told.outcome, "seconds": seconds, "message": message})

    def _list(self, tests: list[str]) -> None:
        if not self._listed:
            self._listed = True
            self._write({"tests": tests})

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()


def _shortened(report: pytest.CollectReport | pytest.TestReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    return report.longreprtext[-MOST_CHARACTERS:] if crash is None else crash.message[:MOST_CHARACTERS]


class Worker:
    @pytest.hookimpl(trylast=True)  # after the controller was told
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and is_broken():
            os._exit(1)


def is_broken() -> bool:
    """Whether nothing can run on the GPU any more in this process, as after a wrong address."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return True
    return False


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        config.pluginmanager.register(Worker())
    else:
        config.pluginmanager.register(Log(Path(os.environ[VARIABLE])))
