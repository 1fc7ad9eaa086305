"""The Triton kernels of the verification walks through every test of the walks, on outputs that held something else."""

import pytest
import torch
from test_tree_walk import *  # noqa: F403
from test_tree_walk import Walk
from torch import Tensor

from vllm_specext.kernels.tree_walk import kernel


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> tuple[Walk, Walk]:
    stock, stock_empty = Tensor.new_empty, torch.empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **kwargs: stock(*args, **kwargs).fill_(-77))
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: stock_empty(*args, **kwargs).fill_(-77))
    return kernel.accept_tree, kernel.accept_chain
