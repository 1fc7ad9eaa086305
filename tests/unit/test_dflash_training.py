"""DFlash's training over packed rows, against the drafter's specification, one row of text at a time."""

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tests.unit.tiny_dflash import tiny_dflash
from tests.unit.tiny_llama import random_rows, tiny_llama
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.block.model import DFlashDrafter, blocks
from vllm_specext.training.block import attention
from vllm_specext.training.block.blocks import BlockBatch, make_blocks
from vllm_specext.training.block.dflash import DFlashStep, DFlashTraining
from vllm_specext.training.block.ends import Ends
from vllm_specext.training.block.shape import layers_to_read
from vllm_specext.training.block.simulation import simulate_dflash
from vllm_specext.training.features import TargetRows
from vllm_specext.training.packs import Packed, pack
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.step import Progress

WIDTH, ANCHORS, SEED = 6, 5, 3
LENGTHS = [[9, 14, 4], [20, 7]]
TOKENS = 30
TARGET = tiny_llama(6)
DRAFTER = tiny_dflash(TARGET, WIDTH)
SHAPE = DRAFTER.shape
EMBEDDING, HEAD = TARGET.get_input_embeddings().weight, TARGET.lm_head.weight
ENDS = Ends(EMBEDDING, HEAD, SHAPE.mask, 0.5)


def row_of(ids: Tensor, number: int) -> FeatureRow:
    """What the target makes of a row, of which it did not read the last token, and every fifth token is not learnt."""
    row = TargetRows(TARGET, [ids], 0, layers=SHAPE.reads, kept=False).read([0])[0]
    assert row.aux is not None
    row.features[-1], row.aux[-1] = 0, 0
    mask = (torch.arange(len(ids)) + number) % 5 > 0
    return row._replace(loss_mask=mask.to(torch.uint8))


@pytest.fixture(scope="module")
def rows() -> list[list[FeatureRow]]:
    ids = iter(random_rows(5, 20))
    return [[row_of(next(ids)[:length], number) for number, length in enumerate(lengths)] for lengths in LENGTHS]


@pytest.fixture(scope="module")
def packed(rows: list[list[FeatureRow]]) -> Packed:
    return pack(rows, TOKENS, (4, 7))


def of_blocks(rows: list[list[FeatureRow]], batch: BlockBatch) -> Iterator[tuple[int, int, FeatureRow, int]]:
    """Pack and number of each block, its row of text, and its place there. Padding is a row that nobody learns."""
    for number, anchors in enumerate(batch.anchors.tolist()):
        for block, anchor in enumerate(anchors):
            begin = 0
            for row in rows[number]:
                if anchor < begin + len(row.token_ids):
                    yield number, block, row, anchor - begin
                    break
                begin += len(row.token_ids)


def test_blocks_begin_before_what_is_learnt_and_count_what_is_known(
    rows: list[list[FeatureRow]], packed: Packed
) -> None:
    batch = make_blocks(packed, ANCHORS, WIDTH, WIDTH - 1, SEED)
    found = list(of_blocks(rows, batch))
    assert len(found) == len(LENGTHS) * ANCHORS
    for number, block, row, place in found:
        learnt = [place + step < len(row.token_ids) and bool(row.loss_mask[place + step]) for step in range(1, WIDTH)]
        expected = [all(learnt[: step + 1]) for step in range(WIDTH - 1)]
        assert batch.counted[number, block].tolist() == expected
        assert expected[0]
        assert place > 0
        assert batch.preceding[number, block, 0] == row.token_ids[place]
        assert batch.places[number].view(-1, WIDTH)[block].tolist() == list(range(place, place + WIDTH))
    anchors = batch.anchors
    assert (anchors.diff(dim=1) > 0).all()
    again, other = (make_blocks(packed, ANCHORS, WIDTH, WIDTH - 1, seed).anchors for seed in (SEED, SEED + 1))
    assert torch.equal(again, anchors)
    assert not torch.equal(other, anchors)
    alone = make_blocks(pack(rows[1:], TOKENS, (7,)), ANCHORS, WIDTH, WIDTH - 1, SEED)
    assert torch.equal(alone.anchors, anchors[1:])


def test_places_that_there_are_none_of_do_not_count(packed: Packed) -> None:
    batch = make_blocks(packed, 1000, WIDTH, WIDTH - 1, SEED)
    assert batch.anchors.shape[1] == TOKENS
    learnt = [
        [(place + 1 + number) % 5 > 0 for number, length in enumerate(lengths) for place in range(1, length - 1)]
        for lengths in LENGTHS
    ]
    possible = list(map(sum, learnt))
    assert batch.counted[..., 0].sum(dim=1).tolist() == possible


def losses_of(model: DFlashDrafter, rows: list[list[FeatureRow]], batch: BlockBatch) -> Tensor:
    """``[W - 1]``: sums of cross-entropies, from one block at a time."""
    sums = torch.zeros(WIDTH - 1)
    for number, block, row, place in of_blocks(rows, batch):
        assert row.aux is not None
        places, mask = blocks(torch.tensor([[place]]), WIDTH, len(row.token_ids))
        ids = torch.full((1, WIDTH), SHAPE.mask)
        ids[0, 0] = row.token_ids[place]
        made = model(ENDS.scale * F.embedding(ids, EMBEDDING), places, row.aux[None].float(), mask)[0]
        for step in range(1, WIDTH):
            if batch.counted[number, block, step - 1]:
                wanted = (row.features[place + step - 1].float() @ HEAD.T).softmax(dim=-1)
                sums[step - 1] += F.cross_entropy(made[step] @ HEAD.T, wanted)
    return sums


@pytest.mark.parametrize("chunk", [WIDTH, 2 * WIDTH, 512])
def test_a_step_has_the_losses_and_gradients_of_the_specification(
    chunk: int, rows: list[list[FeatureRow]], packed: Packed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attention, "CHUNK", chunk)
    batch = make_blocks(packed, ANCHORS, WIDTH, WIDTH - 1, SEED)
    recipe = DFlashTraining(decay=2.0)
    weights = torch.exp(-torch.arange(WIDTH - 1) / 2.0)
    sums = DFlashStep(DRAFTER, ENDS, WIDTH - 1, recipe)(batch, Progress(1, 1, 0.0))
    expected = losses_of(DRAFTER, rows, batch)
    torch.testing.assert_close(sums.loss, expected * weights)
    assert torch.equal(sums.counts, batch.counted.sum(dim=(0, 1)))
    parameters = list(DRAFTER.parameters())
    made = torch.autograd.grad(sums.loss.sum(), parameters)
    wanted = torch.autograd.grad((expected * weights).sum(), parameters)
    for one, other in zip(made, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


def test_a_step_in_bfloat16_has_nearly_the_same_losses(packed: Packed) -> None:
    batch = make_blocks(packed, ANCHORS, WIDTH, WIDTH - 1, SEED)
    exact, rounded = (
        DFlashStep(DRAFTER, ENDS, WIDTH - 1, DFlashTraining(bfloat16=bfloat16))(batch, Progress(1, 1, 0.0))
        for bfloat16 in (False, True)
    )
    torch.testing.assert_close(rounded.loss, exact.loss, rtol=0.02, atol=0.02)
    assert not torch.equal(rounded.loss, exact.loss)
    gradients = torch.autograd.grad(rounded.loss.sum(), list(DRAFTER.parameters()))
    assert all(gradient.dtype is torch.float32 and bool(gradient.isfinite().all()) for gradient in gradients)


def test_a_block_that_sees_its_own_text_is_noticed(rows: list[list[FeatureRow]], packed: Packed) -> None:
    batch = make_blocks(packed, ANCHORS, WIDTH, WIDTH - 1, SEED)
    first = batch.anchors - batch.places[:, ::WIDTH]
    moved = attention.BlockAttention.of(batch.anchors + 1, first, WIDTH, "cpu")
    sums = DFlashStep(DRAFTER, ENDS, WIDTH - 1, DFlashTraining())(replace(batch, attend=moved), Progress(1, 1, 0.0))
    weights = torch.exp(-torch.arange(WIDTH - 1) / DFlashTraining.decay)
    assert not torch.allclose(sums.loss, losses_of(DRAFTER, rows, batch) * weights, rtol=1e-3)


@torch.no_grad()
def test_simulated_blocks_are_those_of_the_specification(monkeypatch: pytest.MonkeyPatch) -> None:
    length = 4
    row = row_of(random_rows(1, 17)[0], 0)
    assert row.aux is not None
    ids, states = row.token_ids[None, 1:], row.aux[None, :-1].float()
    found = simulate_dflash(DRAFTER, ENDS, ids, states, length)
    monkeypatch.setattr("vllm_specext.training.block.simulation.TOGETHER", 3 * (length + 1))
    assert torch.equal(simulate_dflash(DRAFTER, ENDS, ids, states, length), found)
    for place in range(1, 17):
        places, mask = blocks(torch.tensor([[place]]), length + 1, 16)
        known = torch.full((1, length + 1), SHAPE.mask)
        known[0, 0] = row.token_ids[place]
        made = DRAFTER(ENDS.scale * F.embedding(known, EMBEDDING), places, states, mask)[0, 1:]
        assert found[0, place - 1].tolist() == (made @ HEAD.T).argmax(dim=-1).tolist()


def test_layers_are_those_of_released_drafters_wherever_the_target_has_enough() -> None:
    assert layers_to_read(36) == (2, 10, 18, 26, 34)  # of Qwen3-8B, whose outputs are those of layers 1 to 33
    assert layers_to_read(30) == (2, 9, 15, 21, 28)  # halves are rounded to even numbers, as z-lab's code does
    assert layers_to_read(46) == (2, 13, 23, 33, 44)
    assert layers_to_read(8) == (2, 3, 4, 5, 6)
    for count in range(4, 100):
        layers = layers_to_read(count)
        assert list(layers) == sorted(set(layers))
        assert 1 <= layers[0] <= layers[-1] < count
    with pytest.raises(ConfigurationError, match="at least 4 are needed"):
        layers_to_read(3)


def test_later_tokens_weigh_less() -> None:
    step = DFlashStep(DRAFTER, ENDS, 15, DFlashTraining())
    assert step.weights.tolist() == pytest.approx([math.exp(-place / 7) for place in range(15)])
