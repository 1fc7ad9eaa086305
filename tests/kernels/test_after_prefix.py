"""Attention to a tree's nodes after another kernel's attention to the prefix, against the loop of
``test_tree_attention.py``.

Every test here runs on a GPU, and under Triton's interpreter (``cases/case_after_prefix.py``).
"""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from bodies import GPU, choose
from cache_layouts import Layout, far_apart, halves, token_major
from test_tree_attention import (  # noqa: F401 - three of its tests are run here too
    MIXED,
    SCALE,
    Case,
    close,
    make,
    test_a_wrong_bit_shows,
    test_a_wrong_prefix_length_shows,
    test_heads_share_the_keys_of_their_group,
)
from torch import Tensor
from torch.nn import functional as F

pytest.importorskip("triton")

from vllm_specext.kernels.tree_attention import TreeRows
from vllm_specext.kernels.tree_attention.after_prefix import attend_to_nodes


def over_prefixes(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    rows: TreeRows,
    out: Tensor,
    scale: float,
    soft_cap: float = 0.0,
    empty: float = -math.inf,
) -> Tensor:
    """Write what the rows see of their prefixes to ``out``; the log-sum-exp of the scores, ``[Hq, T]``."""
    heads, kv_heads, page_size = query.shape[1], *keys.shape[1:3]
    lse = torch.full((heads, rows.num_rows), empty, device=query.device)
    starts = rows.query_start_loc.tolist()
    for request, (start, end) in enumerate(pairwise(starts)):
        slots = torch.arange(int(rows.prefix_lens[request]) if end > start else 0, device=query.device)
        if not len(slots):
            continue
        pages = rows.block_table[request][slots // page_size].long()
        key, value = (x[pages, :, slots % page_size].double() for x in (keys, values))  # [S, Hkv, D]
        key, value = (x.repeat_interleave(heads // kv_heads, dim=1) for x in (key, value))
        scores = torch.einsum("qhd,shd->hqs", query[start:end].double(), key) * scale
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        lse[:, start:end] = scores.logsumexp(2)
        out[start:end] = torch.einsum("hqs,shd->qhd", scores.softmax(2), value).to(out)
    return lse


def attend(
    query: Tensor, keys: Tensor, values: Tensor, rows: TreeRows, out: Tensor, empty: float = -math.inf, **options: Any
) -> None:
    lse = over_prefixes(query, keys, values, rows, out, empty=empty, **options)
    attend_to_nodes(query, keys, values, rows, out, lse, **options)


@pytest.fixture(autouse=True, params=[GPU])
def implementation(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    choose(request.param, monkeypatch)
    monkeypatch.setattr(Case, "device", "cuda")
    monkeypatch.setattr(Case, "implementation", staticmethod(attend))


@pytest.mark.parametrize("head_size", [64, 80, 128])
@pytest.mark.parametrize("layout", [halves, token_major, far_apart])
def test_prefix_and_ancestors_together_are_what_rows_see(head_size: int, layout: Layout) -> None:
    close(make(**MIXED, head_size=head_size, layout=layout))


@pytest.mark.parametrize(("heads", "kv_heads"), [(14, 2), (3, 3), (5, 1)])
def test_any_number_of_heads_may_share_keys(heads: int, kv_heads: int) -> None:
    close(make(**MIXED, heads=heads, kv_heads=kv_heads))


@pytest.mark.parametrize("drafted", [0, 40])
@pytest.mark.parametrize("nodes", [32, 70])
def test_bits_of_several_words(nodes: int, drafted: int) -> None:
    close(make([nodes, nodes - 5], [11, 50], drafted=drafted))


def test_an_empty_prefix_may_be_told_in_either_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Case, "implementation", staticmethod(partial(attend, empty=math.inf)))
    close(make(**MIXED))


def test_scores_may_be_capped() -> None:
    close(make(**MIXED), soft_cap=1.5)


@pytest.mark.parametrize("changes", [{}, {"soft_cap": 1.5}])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_rounds_twice_but_does_not_drift(dtype: torch.dtype, changes: dict[str, Any]) -> None:
    close(make(**MIXED, dtype=dtype), tolerance=2e-2 if dtype == torch.bfloat16 else 3e-3, **changes)


def test_requests_that_pad_a_batch_have_no_rows_and_wild_lengths() -> None:
    case = make([9, 0, 5, 0], [40, 3, 33, 7])
    case.rows.prefix_lens[1] = 1 << 20
    close(case)


@pytest.mark.parametrize("in_prefix", [True, False])
def test_a_nan_that_a_row_sees_is_not_hidden(in_prefix: bool) -> None:
    case = make([9, 12], [30, 8])
    slot = 3 if in_prefix else 8  # the root's, which all rows see
    case.values[case.rows.block_table[1, 0].long(), 0, slot] = torch.nan
    spoilt = case.attend().isnan().any(dim=2)
    seeing = [9 + row for row in range(12) if in_prefix or 0 in case.seen[1][row]]
    assert spoilt[seeing][:, :2].all()
    assert not spoilt[:9].any()
    assert not spoilt[:, 2:].any()  # heads that share the other head's keys


@pytest.mark.parametrize("soft_cap", [0.0, 1.5])
@pytest.mark.parametrize("longest", [700, 1 << 15])
@pytest.mark.parametrize("lens", [[700, 40, 16, 1], [5000, 0, 300, 7]])
def test_after_flash_attention_the_result_is_that_of_tree_attention(
    lens: list[int], longest: int, soft_cap: float
) -> None:
    """``longest``: with a higher bound, as in graphs, a prefix may be cut into more parts. The second layer finds what
    the first has worked out."""
    if Case.device != "cuda":
        pytest.skip("needs a CUDA device")
    flash = pytest.importorskip("vllm.vllm_flash_attn")
    if not flash.flash_attn_interface.is_fa_version_supported(3):
        pytest.skip("needs FlashAttention 3")
    from vllm_specext.engine.verification.prefix_attention import PrefixAttention

    case = make([60, 16, 3, 25], lens, heads=8, head_size=128, dtype=torch.bfloat16, layout=token_major)
    case.keys.nan_to_num_()
    case.values.nan_to_num_()
    case.rows.block_table[case.rows.block_table == 1 << 30] = 0
    table = F.pad(case.rows.block_table, (0, longest // case.keys.shape[2]))
    rows = replace(case.rows, block_table=table, max_seq_len=max(longest, case.rows.max_seq_len))
    over_prefixes = PrefixAttention(SCALE, soft_cap)
    for _ in range(2):
        out = torch.full_like(case.query, 7.0)
        over_prefixes.and_nodes(case.query, case.keys, case.values, rows, out)
        torch.testing.assert_close(out.cpu().double(), case.expected(soft_cap=soft_cap), rtol=0, atol=2e-2)
    assert len(rows.shared) == 1
