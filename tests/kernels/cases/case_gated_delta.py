"""The Triton kernels of the gated delta rule through every test of it."""

from types import SimpleNamespace

import pytest
from test_gated_delta import *  # noqa: F403
from test_gated_delta import Rule

from vllm_specext.kernels.gated_delta import kernel, path_kernels


@pytest.fixture
def rule() -> Rule:
    return SimpleNamespace(attend=kernel.attend, advance=path_kernels.advance)
