"""Keeps the interpreter's cases to their own process, and says at the end of the run how many ran there."""

import os

import pytest
from test_cpu_bodies import CASES_RUN

collect_ignore = [] if os.environ.get("TRITON_INTERPRET") == "1" else ["cases"]
"""Their ``conftest.py`` changes Triton for good: kernels that are compiled in the same process would have no barriers,
and would be kept so in Triton's cache. It would set up Hypothesis for all other tests, too."""


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(CASES_RUN, None)
    if count is not None:
        terminalreporter.write_line(f"tests/kernels/test_cpu_bodies.py: {count} cases ran under the Triton interpreter")
