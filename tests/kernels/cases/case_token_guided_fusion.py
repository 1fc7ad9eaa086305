"""The Triton kernels of token-guided fusion through every test of it, with and without splits."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
import triton.runtime.interpreter as interpreter
from bodies import fill_new_memory
from test_token_guided_fusion import *  # noqa: F403
from test_token_guided_fusion import Case, close, make

from vllm_specext.kernels.token_guided_fusion import kernel


@pytest.fixture(autouse=True)
def _rounds_to_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU does; the interpreter cuts the bits off that bfloat16 does not have."""
    stock = interpreter.InterpreterBuilder.create_fp_trunc

    def truncate(builder: Any, source: interpreter.TensorHandle, target: Any) -> interpreter.TensorHandle:
        if (source.dtype.scalar, target.scalar) != (tl.float32, tl.bfloat16):
            return stock(builder, source, target)
        bits = np.ascontiguousarray(source.data).view(np.uint32)
        return interpreter.TensorHandle(((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16), tl.bfloat16)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_fp_trunc", truncate)


@pytest.fixture(autouse=True, params=[1, 6])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of the module's own: the kernels for so many processors."""
    fill_new_memory(monkeypatch)
    run = partial(kernel.token_guided_fusion, processors=request.param)
    monkeypatch.setattr(Case, "implementation", staticmethod(run))


@pytest.mark.parametrize("implementation", [1, 2, 3, 5, 132], indirect=True)
@pytest.mark.parametrize("rows", [1, 20])
def test_any_number_of_splits_gives_the_same(rows: int) -> None:
    """Also those that do not divide the inner dimension, and that end in the middle of a half."""
    case = make(rows, 520, 840)
    assert close(case.fuse(), case.expected()[1])


@pytest.mark.parametrize("rows", [1, 20])
def test_the_norms_go_with_products_of_the_library(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "implementation", staticmethod(kernel.with_library_products))
    case = make(rows, 100, 72)
    assert close(case.fuse(), case.expected()[1])
    assert close(case.fuse(gathered=True), case.expected()[1])


@pytest.mark.parametrize("wrong", [-1, 50, 2**31 - 1])
def test_a_token_outside_of_the_table_has_an_embedding_of_zeros(wrong: int) -> None:
    case = make(4)
    absent = next(token for token in range(50) if token not in case.token_ids)
    case.table[absent] = 0.0
    case.token_ids[2] = absent
    expected = case.fuse()
    case.token_ids[2] = wrong
    assert torch.equal(case.fuse(), expected)
