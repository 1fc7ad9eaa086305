"""The Triton kernels of the gated delta rule through every test of it."""

import pytest
from test_gated_delta import *  # noqa: F403
from test_gated_delta import Rule

from vllm_specext.kernels.gated_delta import kernel


@pytest.fixture
def rule() -> Rule:
    return kernel
