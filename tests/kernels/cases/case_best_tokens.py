"""The Triton kernels of the most likely tokens through their tests, on memory that held something else."""

from collections.abc import Callable

import pytest
from bodies import fill_new_memory
from test_best_tokens import *  # noqa: F403
from test_best_tokens import Best
from torch import Tensor

from vllm_specext.kernels.best_tokens import kernel


@pytest.fixture
def best(monkeypatch: pytest.MonkeyPatch) -> Best:
    fill_new_memory(monkeypatch)
    return kernel.best_tokens


@pytest.fixture
def first(monkeypatch: pytest.MonkeyPatch) -> Callable[[Tensor], Tensor]:
    fill_new_memory(monkeypatch)
    return kernel.best_token
