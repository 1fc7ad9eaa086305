"""The target's features, and the batches made of them."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.tiny_llama import random_rows, tiny_llama
from vllm_specext.training import features
from vllm_specext.training.features import FeatureRows, Rows, make_batch, target_features


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(2)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_features_are_the_input_of_the_targets_head(target: LlamaForCausalLM) -> None:
    rows = list(random_rows(2, 12))
    found = target_features(target, [rows[0], rows[1][:7]])
    for b, row in enumerate([rows[0], rows[1][:7]]):
        output = target(row[None], output_hidden_states=True)
        assert_same(found.features[b, : len(row)], output.hidden_states[-1][0])
        assert_same(found.features[b, : len(row)] @ target.lm_head.weight.T, output.logits[0])
    assert found.lengths.tolist() == [12, 7]
    assert found.loss_mask.tolist() == [[1] * 12, [1] * 7 + [0] * 5]
    assert found.features[1, 7:].abs().max() == 0


def test_a_batch_pairs_each_feature_with_the_next_token_and_the_next_feature() -> None:
    rows = Rows(
        token_ids=torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]]),
        features=torch.tensor([[[1.0], [2.0], [3.0], [4.0]], [[5.0], [6.0], [7.0], [0.0]]]),
        loss_mask=torch.tensor([[0, 1, 1, 1], [1, 0, 1, 0]]),
        lengths=torch.tensor([4, 3]),
    )
    batch = make_batch(rows, noise=0.0)
    assert batch.input_ids.tolist() == [[2, 3, 4, 0], [6, 7, 0, 0]]
    assert batch.features.squeeze(-1).tolist() == [[1, 2, 3, 4], [5, 6, 7, 0]]
    assert batch.target_features.squeeze(-1).tolist() == [[2, 3, 4, 0], [6, 7, 0, 0]]
    assert batch.loss_mask.tolist() == [[0, 1, 1, 0], [1, 0, 0, 0]]


def test_noise_is_bounded_by_the_rows_length_and_spares_targets_and_padding(target: LlamaForCausalLM) -> None:
    rows = target_features(target, [random_rows(1, 40)[0], random_rows(1, 10)[0]])
    clean, noisy = make_batch(rows, noise=0.0), make_batch(rows, noise=2.0, generator=torch.Generator().manual_seed(0))
    difference = (noisy.features - clean.features).abs()
    for b, length in enumerate((40, 10)):
        largest = difference[b, :length].max().item()
        assert 0.9 / length < largest <= 1.001 / length
    assert difference[1, 10:].max() == 0
    assert torch.equal(noisy.target_features, clean.target_features)


def test_endless_batches_visit_every_row_before_any_comes_again(target: LlamaForCausalLM) -> None:
    rows = [row[: 8 + i] for i, row in enumerate(random_rows(6, 14))]
    source = FeatureRows(target, rows, 3, seed=0)
    for _ in range(3):
        epoch = [source.take(), source.take()]
        assert sorted(n for batch in epoch for n in batch.lengths.tolist()) == [len(row) for row in rows]
        for batch in epoch:
            for b, length in enumerate(batch.lengths.tolist()):
                expected = target_features(target, [rows[length - 8]]).features[0]
                torch.testing.assert_close(batch.features[b, :length], expected, rtol=1e-2, atol=1e-2)
                assert batch.loss_mask[b].sum() == length


def test_rows_are_computed_together_as_before_an_interruption(
    target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums in another batch are rounded otherwise, so that the last bits would depend on the interruption."""
    rows = [row[: 8 + i] for i, row in enumerate(random_rows(7, 15))]
    together: list[list[int]] = []

    def recorded(target: LlamaForCausalLM, rows: list[Tensor]) -> Rows:
        together.append([len(row) for row in rows])
        return target_features(target, rows)

    monkeypatch.setattr(features, "target_features", recorded)
    unbroken = FeatureRows(target, rows, 3, seed=0)
    batches = [unbroken.take() for _ in range(5)]
    state = unbroken.state_dict()
    batches += [unbroken.take() for _ in range(5)]
    groups = sorted(together)
    assert [len(group) for group in together] == [3, 3, 1]
    together.clear()
    resumed = FeatureRows(target, rows, 3, seed=0)
    resumed.load_state_dict(state)
    for expected in batches[5:]:
        assert torch.equal(resumed.take().features, expected.features)
    assert sorted(together) == groups
