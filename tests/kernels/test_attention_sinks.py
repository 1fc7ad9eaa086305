"""Attention sinks in tree attention: a score for each head that takes its share of the weights and has no value.

Against the loop of ``test_tree_attention.py``, with the same bodies and under Triton's interpreter.
"""

from typing import Any

import pytest
import torch
from cache_layouts import halves
from test_tree_attention import MIXED, PER_HEAD, PER_TENSOR, Case, close, implementation, in_float8, make  # noqa: F401
from torch import Tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("changes", [{}, {"soft_cap": 1.5}, {"sliding_window": 15}])
def test_sinks_take_their_share_of_the_weights(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    """One far above all scores, one far below, and one of no weight at all. They may lie apart."""
    case = make(**MIXED)
    sinks = torch.tensor([0.4, 7.0, -30.0, -torch.inf], dtype=dtype, device=Case.device).repeat_interleave(2)[::2]
    close(case, sinks=sinks, **changes)
    heads = (case.expected(sinks=sinks, **changes) - case.expected(**changes)).abs().amax(dim=(0, 2)) > 1e-2
    assert heads.tolist() == [True, True, False, False]


@pytest.mark.parametrize("scales", [PER_TENSOR, PER_HEAD])
def test_sinks_beside_float8_caches(scales: dict[str, Tensor]) -> None:
    close(in_float8(scales, layout=halves), tolerance=2e-3, sinks=torch.linspace(-1, 2, 4, device=Case.device))


def test_rows_that_see_only_themselves_have_sinks() -> None:
    case = make([1, 1], [0, 0])
    sinks = torch.tensor([0.5, 0.0, -2.0, 3.0], device=Case.device)
    close(case, sinks=sinks)


def test_sinks_of_other_heads_show() -> None:
    case = make(**MIXED, heads=8)
    sinks = torch.linspace(-2, 3, 8, device=Case.device)
    close(case, sinks=sinks)
    wrong = (case.attend(sinks=sinks.view(2, 4).T.flatten()).double() - case.expected(sinks=sinks))[:30]
    assert (wrong.abs().amax(dim=2) > 1e-3)[:, 1:-1].float().mean() > 0.9
