"""The bodies of a kernel that tests run: in torch, in C++ on a CPU, and in Triton on a GPU."""

import pytest
import torch
from torch import Tensor

from vllm_specext.kernels.native import library

GPU = pytest.param("GPU", marks=pytest.mark.gpu)
ON_CPU = ["torch", "C++"]
BODIES = [*ON_CPU, GPU]


def choose(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have kernels on a CPU run this body; skips where it cannot run here."""
    if body == "GPU":
        pytest.importorskip("triton")
        if not torch.cuda.is_available():
            pytest.skip("needs a CUDA device")
    elif body == "torch":
        monkeypatch.setattr(library, "load", lambda: "the test asks for torch")
    elif isinstance(reason := library.load(), str):
        pytest.skip(f"the bodies in C++ are not there: {reason}")


def fill_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have memory that is to be written hold something else first."""
    stock, stock_empty = Tensor.new_empty, torch.empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **kwargs: stock(*args, **kwargs).fill_(-77))
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: stock_empty(*args, **kwargs).fill_(-77))
