"""The Triton kernels of the layout through every test of the layout, on outputs that held something else."""

import pytest
import torch
from test_tree_layout import *  # noqa: F403
from test_tree_layout import AcceptedRows, LayOut

from vllm_specext.kernels.tree_layout import kernel


@pytest.fixture
def layout(monkeypatch: pytest.MonkeyPatch) -> tuple[LayOut, AcceptedRows]:
    empty, empty_like = torch.empty, torch.empty_like

    def poisoned(make: Any) -> Any:  # noqa: F405
        return lambda *args, **kwargs: make(*args, **kwargs).fill_(-77)

    monkeypatch.setattr(torch, "empty", poisoned(empty))
    monkeypatch.setattr(torch, "empty_like", poisoned(empty_like))
    return kernel.lay_out, kernel.accepted_rows
