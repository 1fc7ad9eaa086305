"""The Triton kernels of the expansion through the tests of the expansion, on memory that held something else."""

import pytest
from bodies import fill_new_memory
from test_tree_expansion import *  # noqa: F403
from test_tree_expansion import Start

from vllm_specext.kernels.tree_expansion import kernel


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Start:
    fill_new_memory(monkeypatch)
    return kernel.FusedExpansion
