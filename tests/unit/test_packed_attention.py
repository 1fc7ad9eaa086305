"""Attention over packed rows in chunks of queries, against all scores of one row at once."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.unit.largest_tensor import Largest
from vllm_specext.methods.layers import KV, Attention, Rotary
from vllm_specext.training import own_keys, packed_attention
from vllm_specext.training.own_keys import attend
from vllm_specext.training.packed_attention import Layout, Own, Passes, Span, later_inputs

WIDTH, PASSES = 24, 3
LENGTHS = ([14, 23, 3], [9, 1, 30])
"""The last row of the first pack ends with the pack; a row of one slot sees itself alone."""
LAYOUT = Layout.of(LENGTHS)
CHUNK = 11


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention.attend, "__defaults__", (None, CHUNK))


@pytest.fixture(scope="module")
def attention() -> Attention:
    torch.manual_seed(0)
    return Attention(WIDTH, 4, 2, 6, Rotary(1000.0))


def hidden_states() -> list[Tensor]:
    """Of every pass, ``[B, L, d]``."""
    torch.manual_seed(1)
    return [torch.randn(2, 40, WIDTH, requires_grad=True) for _ in range(PASSES)]


def rolled(kv: KV, back: int) -> KV:
    return kv[0].roll(back, dims=2), kv[1].roll(back, dims=2)


def one_row(attention: Attention, hidden: list[Tensor], zero_score: bool) -> list[Tensor]:
    """Every pass's output over one row ``[1, L, d]``, with masks and all scores at once."""
    columns = torch.arange(hidden[0].shape[1])[None]
    rows = columns.T
    made = [attention.keys_values(x, columns) for x in hidden]
    outputs = []
    for n, x in enumerate(hidden):
        backs = list(reversed(range(n)))
        own = [rolled(kv, back) for kv, back in zip(made[1:], backs, strict=False)]
        seen = torch.cat([rows >= back for back in backs], dim=1) if backs else None
        zeros = columns > rows if zero_score else None
        queries = attention.queries(x, columns)
        outputs.append(attend(attention, queries, made[0], columns <= rows - n, own, seen, zeros))
    return outputs


def row_by_row(attention: Attention, hidden: list[Tensor], zero_score: bool = False) -> list[Tensor]:
    packs = []
    for b, lengths in enumerate(LENGTHS):
        rows, start = [], 0
        for length in lengths:
            part = [x[b : b + 1, start : start + length] for x in hidden]
            rows.append(one_row(attention, part, zero_score))
            start += length
        packs.append([torch.cat(outputs, dim=1) for outputs in zip(*rows, strict=True)])
    return [torch.cat(outputs) for outputs in zip(*packs, strict=True)]


def packed(attention: Attention, hidden: list[Tensor], layout: Layout, zero_score: bool = False) -> list[Tensor]:
    passes = Passes(attention, layout)
    return [passes.attend(x, zero_score=zero_score) for x in hidden]


def gradients(attention: nn.Module, hidden: list[Tensor], outputs: list[Tensor]) -> list[Tensor]:
    loss = sum(((n + 1) * output.square().sum() for n, output in enumerate(outputs)), torch.zeros(()))
    return list(torch.autograd.grad(loss, [*hidden, *attention.parameters()]))


@pytest.mark.parametrize("zero_score", [False, True])
def test_packed_rows_attend_as_single_rows_do(attention: Attention, zero_score: bool) -> None:
    hidden = hidden_states()
    ours, expected = packed(attention, hidden, LAYOUT, zero_score), row_by_row(attention, hidden, zero_score)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(attention, hidden, ours), gradients(attention, hidden, expected), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    with torch.no_grad():
        assert all(map(torch.equal, packed(attention, hidden, LAYOUT, zero_score), ours))


def test_rows_that_see_each_other_give_something_else(attention: Attention) -> None:
    hidden = hidden_states()
    ours = packed(attention, hidden, LAYOUT)
    joined = packed(attention, hidden, Layout(LAYOUT.positions, ((0,), (0,))))
    seeing = Layout.of([[40], [40]])
    for one, same, other in zip(ours, joined, packed(attention, hidden, seeing), strict=True):
        # Which keys a chunk is given makes no difference; where the rows begin does.
        torch.testing.assert_close(one, same, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(one[:, :9], other[:, :9], rtol=1e-5, atol=1e-5)
        assert not torch.allclose(one[0, 14:], other[0, 14:], atol=1e-2)
    assert not torch.allclose(packed(attention, hidden, LAYOUT, zero_score=True)[0], ours[0], atol=1e-2)


def test_ranges_of_two_sets_of_keys_are_masks_over_both(attention: Attention) -> None:
    """As in MoA: verified keys up to a boundary, and drafted ones from there to the query."""
    hidden = hidden_states()
    at = LAYOUT.positions
    queries = attention.queries(hidden[0], at)
    known, drafted = (attention.keys_values(x, at) for x in hidden[1:])
    boundary = (LAYOUT.slots - at % 4).expand_as(at)
    slots = LAYOUT.slots.expand_as(at)
    spans = [Span(known, LAYOUT.first, boundary), Span(drafted, boundary + 1, slots)]
    ours = packed_attention.attend(attention, queries, spans, [], LAYOUT)
    keys = torch.arange(40)
    verified = (keys <= boundary[..., None]) & (keys >= LAYOUT.first[..., None])
    block = (keys > boundary[..., None]) & (keys <= slots[..., None])
    both = tuple(torch.cat(pair, dim=2) for pair in zip(known, drafted, strict=True))
    expected = attention.attend(queries, both, torch.cat((verified, block), dim=-1)[:, None])
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    unseen = packed_attention.attend(attention, queries, spans, [Own(known, at >= 0)], LAYOUT)
    assert not torch.allclose(ours, unseen, atol=1e-3)


def test_the_next_pass_reads_what_was_made_one_position_before() -> None:
    first, made = torch.zeros(2, 40, 1), torch.arange(80.0).view(2, 40, 1) + 1
    read = later_inputs(first, made, LAYOUT).squeeze(-1)
    assert read[0, :16].tolist() == [0, *range(1, 14), 0, 15]
    assert read[1, 8:12].tolist() == [48, 0, 0, 51]


def test_a_layout_knows_what_comes_later() -> None:
    assert LAYOUT.begins == ((0, 14, 37), (0, 9, 10))
    assert LAYOUT.later[0, 12:16].tolist() == [1, 0, 22, 21]
    assert LAYOUT.later[1, 8:11].tolist() == [0, 0, 29]
    assert LAYOUT.first[1, 8:11].tolist() == [0, 9, 10]


@pytest.mark.parametrize("zero_score", [False, True])
def test_queries_of_a_row_attend_together_or_a_few_at_a_time(
    attention: Attention, zero_score: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = one_row(attention, hidden := hidden_states(), zero_score)
    monkeypatch.setattr(own_keys, "TOGETHER", 7)
    for some, all_at_once in zip(one_row(attention, hidden, zero_score), together, strict=True):
        torch.testing.assert_close(some, all_at_once, rtol=1e-5, atol=1e-5)


def test_no_tensor_has_the_scores_of_all_queries(attention: Attention, monkeypatch: pytest.MonkeyPatch) -> None:
    length, chunk, heads = 1024, 32, 4
    monkeypatch.setattr(packed_attention.attend, "__defaults__", (None, chunk))
    monkeypatch.setattr(own_keys, "TOGETHER", chunk)
    hidden = [torch.randn(1, length, WIDTH)] * 2

    def largest(outputs: Any) -> int:
        with Largest() as seen:
            sum(output.sum() for output in outputs()).backward()
        return seen.numbers

    few = heads * chunk * (length + 2)
    assert largest(lambda: packed(attention, hidden, Layout.of([[length]]))) <= few
    assert largest(lambda: one_row(attention, hidden, False)) <= length**2  # the mask
    monkeypatch.setattr(own_keys, "TOGETHER", length)
    assert largest(lambda: one_row(attention, hidden, False)) >= heads * length**2
