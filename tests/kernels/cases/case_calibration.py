"""The Triton kernel of calibration through every test of it, on memory that held something else."""

from typing import Any

import pytest
from bodies import fill_new_memory
from test_calibration import *  # noqa: F403
from test_calibration import Calibrate

from vllm_specext.kernels.calibration import kernel


@pytest.fixture
def calibrate(monkeypatch: pytest.MonkeyPatch) -> Calibrate:
    fill_new_memory(monkeypatch)

    def run(learned: Any, *given: Any, verified: int, counts: Any = None) -> Any:
        return kernel.calibrate(learned, *given, verified, counts)

    return run
