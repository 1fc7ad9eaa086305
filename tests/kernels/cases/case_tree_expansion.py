"""The Triton kernels of the expansion through the tests of the expansion, on memory that held something else."""

import pytest
from test_tree_expansion import *  # noqa: F403
from test_tree_expansion import Start
from torch import Tensor

from vllm_specext.kernels.tree_expansion import kernel


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    stock = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **kwargs: stock(*args, **kwargs).fill_(-77))
    return kernel.FusedExpansion
