"""The Triton kernels of the layout through every test of the layout, on outputs that held something else."""

import pytest
from bodies import fill_new_memory
from test_tree_layout import *  # noqa: F403
from test_tree_layout import AcceptedRows, LayOut

from vllm_specext.kernels.tree_layout import kernel


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> tuple[LayOut, AcceptedRows]:
    fill_new_memory(monkeypatch)
    return kernel.lay_out, kernel.accepted_rows
