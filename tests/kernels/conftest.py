"""Says at the end of the run how many cases ran in the interpreter's process."""

import pytest
from test_cpu_bodies import CASES_RUN


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = config.stash.get(CASES_RUN, None)
    if count is not None:
        terminalreporter.write_line(f"tests/kernels/test_cpu_bodies.py: {count} cases ran under the Triton interpreter")
