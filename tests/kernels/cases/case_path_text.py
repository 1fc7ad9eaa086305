"""The Triton kernels of penalties, bad words and budgets for thinking through every test of them, and on chains beside
vLLM's own kernels."""

import pytest
from test_path_text import *  # noqa: F403
from test_path_text import Body, check_beside_vllm

from vllm_specext.kernels.path_text import kernel


@pytest.fixture
def bodies() -> Body:
    return kernel.penalise, kernel.ban, kernel.end_thinking


def test_on_chains_logits_are_vllms() -> None:
    check_beside_vllm("cpu")
