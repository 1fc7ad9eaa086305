"""The Triton kernels of the verification walks through every test of the walks, on outputs that held something else."""

import pytest
from bodies import fill_new_memory
from test_tree_walk import *  # noqa: F403
from test_tree_walk import Walk

from vllm_specext.kernels.tree_walk import kernel


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> tuple[Walk, Walk]:
    fill_new_memory(monkeypatch)
    return kernel.accept_tree, kernel.accept_chain
