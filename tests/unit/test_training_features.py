"""What the target makes of rows of text, and the batches made of packs of them."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.tiny_llama import random_rows, tiny_llama
from vllm_specext.training.batches import FeatureBatches, make_batch
from vllm_specext.training.features import TargetRows, target_features
from vllm_specext.training.packs import PackedBatches, pack
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.step import Progress, Share

START = Progress(1, 1, 0.0)


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(2)


def rows_of(count: int) -> list[Tensor]:
    return [row[: 8 + i] for i, row in enumerate(random_rows(count, 8 + count))]


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kept", [True, False])
def test_features_are_the_input_of_the_targets_head(target: LlamaForCausalLM, kept: bool) -> None:
    rows = rows_of(6)
    found = TargetRows(target, rows, 0, layers=(0, 1), kept=kept, together=4).read([3, 1])
    for row, number in zip(found, (3, 1), strict=True):
        output = target(rows[number][None], output_hidden_states=True)
        exact = {"rtol": 1e-2, "atol": 1e-2} if kept else {"rtol": 1e-4, "atol": 1e-4}
        torch.testing.assert_close(row.features.float(), output.hidden_states[-1][0], **exact)
        aux = torch.cat((output.hidden_states[0], output.hidden_states[1]), dim=-1)[0]
        assert row.aux is not None
        torch.testing.assert_close(row.aux.float(), aux, **exact)
        assert torch.equal(row.token_ids, rows[number])
        assert row.loss_mask.tolist() == [1] * len(rows[number])
    assert_same(target_features(target, rows[0][None]) @ target.lm_head.weight.T, target(rows[0][None]).logits)


def test_rows_are_computed_together_whatever_is_read_first(target: LlamaForCausalLM) -> None:
    """Sums in another batch are rounded otherwise, so that the last bits would depend on an interruption."""
    rows = rows_of(7)
    first, again, alone = (TargetRows(target, rows, 0, together=3 if n < 2 else 1) for n in range(3))
    everything = first.read(range(7))
    for number in (5, 0, 6, 3, 1, 2, 4):
        assert torch.equal(again.read([number])[0].features, everything[number].features)
    assert first.group_of == again.group_of
    assert sorted({tuple(group) for group in first.group_of.values()}) != sorted((n,) for n in range(7))
    assert alone.group_of == {n: [n] for n in range(7)}


def test_every_epoch_has_an_order_of_its_own(target: LlamaForCausalLM) -> None:
    source = TargetRows(target, rows_of(7), seed=3)
    orders = [source.order(epoch) for epoch in range(3)]
    assert all(sorted(order) == list(range(7)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert TargetRows(target, rows_of(7), seed=3).order(1) == orders[1]
    assert TargetRows(target, rows_of(7), seed=4).order(1) != orders[1]


def row(first: int, length: int, mask: list[int]) -> FeatureRow:
    ids = torch.arange(first, first + length)
    return FeatureRow(
        ids, torch.tensor(mask, dtype=torch.uint8), ids[:, None].float(), ids[:, None].repeat(1, 3).half()
    )


def test_an_input_pairs_a_feature_with_the_next_token_of_its_row() -> None:
    packed = pack([[row(1, 4, [0, 1, 1, 1]), row(11, 3, [0, 0, 1])]], 9, (0,))
    batch = make_batch(packed)
    assert batch.input_ids.tolist() == [[2, 3, 4, 0, 12, 13, 0, 0, 0]]
    assert batch.next_ids.tolist() == [[3, 4, 0, 0, 13, 0, 0, 0, 0]]
    assert batch.features.squeeze(-1).tolist() == [[1, 2, 3, 4, 11, 12, 13, 0, 0]]
    assert batch.target_features.squeeze(-1).tolist() == [[2, 3, 4, 0, 12, 13, 0, 0, 0]]
    assert batch.aux is not None
    assert batch.aux.shape == (1, 9, 3)
    # An output counts when the token that it predicts does; in the published code, when its own feature's does.
    assert batch.counted.int().tolist() == [[1, 1, 0, 0, 1, 0, 0, 0, 0]]
    assert make_batch(packed, "code").counted.int().tolist() == [[0, 1, 1, 0, 0, 0, 0, 0, 0]]


def test_of_a_token_that_the_target_never_read_the_end_of_an_answer_is_learnt_all_the_same() -> None:
    read = row(1, 4, [0, 0, 1, 1])
    unread = read._replace(features=read.features * torch.tensor([1, 1, 1, 0])[:, None])
    for mask_position, of_read, of_unread in (("token", [1, 1, 0, 0], [1, 1, 0, 0]), ("code", [0, 0, 1, 0], [0] * 4)):
        batches = [make_batch(pack([[one]], 4, (0,)), mask_position) for one in (read, unread)]
        assert [batch.counted.int().tolist() for batch in batches] == [[of_read], [of_unread]]
        # What counts has all that it is learnt from.
        for batch in batches:
            assert bool(batch.target_features[batch.counted].all())


def test_noise_is_bounded_by_the_rows_length_and_spares_targets(target: LlamaForCausalLM) -> None:
    rows = [random_rows(1, 40)[0], random_rows(1, 10)[0]]

    def batches(amplitude: float, seed: int = 0) -> FeatureBatches:
        packs = PackedBatches(TargetRows(target, rows, 0), 50, 1)
        return FeatureBatches(packs, amplitude=amplitude, seed=seed)

    clean, made = batches(0.0).next(START, Share()), batches(2.0)
    noisy, later = (made.next(START, Share()) for _ in range(2))
    difference = (noisy.features - clean.features).abs()[0]
    starts = clean.layout.begins[0]
    for start, length in zip(starts, (40, 10) if starts == (0, 40) else (10, 40), strict=True):
        largest = difference[start : start + length].max().item()
        assert 0.9 / length < largest <= 1.001 / length
    assert torch.equal(noisy.target_features, clean.target_features)
    assert torch.equal(noisy.features, batches(2.0).next(START, Share()).features)
    assert not torch.equal(noisy.features, later.features)
    assert not torch.equal(noisy.features, batches(2.0, seed=1).next(START, Share()).features)


@pytest.mark.parametrize("count", [1, 4])
def test_batches_made_ahead_are_the_same(target: LlamaForCausalLM, count: int) -> None:
    def batches(ahead: int) -> FeatureBatches:
        return FeatureBatches(PackedBatches(TargetRows(target, rows_of(7), 0), 20, 2), amplitude=1.0, ahead=ahead)

    plain, ahead, later = batches(0), batches(count), batches(count)
    for n in range(9):
        one, other = (made.next(START, Share()) for made in (plain, ahead))
        assert torch.equal(one.input_ids, other.input_ids)
        assert torch.equal(one.features, other.features)
        assert len(ahead.made) == count
        if n == 4:
            # What is made already does not belong to the place.
            assert ahead.state_dict() == plain.state_dict()
            later.load_state_dict(ahead.state_dict())
    for _ in range(4):
        last = later.next(START, Share())
    assert torch.equal(last.features, one.features)
