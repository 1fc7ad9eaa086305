"""The bodies of a kernel that tests run: in torch, in C++ on a CPU, and in Triton on a GPU."""

from collections.abc import Callable
from typing import Any

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
    """Have memory that is to be written hold something else first: NaN, which a weight of 0 does not cancel, or -77."""
    for owner, name in [(Tensor, "new_empty"), (torch, "empty"), (torch, "empty_like")]:
        monkeypatch.setattr(owner, name, _filled(getattr(owner, name)))


def _filled(make: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def make_filled(*args: Any, **kwargs: Any) -> Tensor:
        tensor = make(*args, **kwargs)
        return tensor.fill_(torch.nan if tensor.is_floating_point() else -77)

    return make_filled
