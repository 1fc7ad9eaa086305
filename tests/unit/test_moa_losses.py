"""MoA's blocks and masks by their definition, and its losses by hand."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.moa_drafters import random_drafter
from tests.unit.moa_masks import memory_mask, token_mask, two_key_sets
from tests.unit.tiny_llama import random_rows, tiny_llama
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.training.moa.blocks import last_verified, sample_boundaries
from vllm_specext.training.moa.losses import MoALosses, moa_losses
from vllm_specext.training.moa.target import last_target_layers, target_states
from vllm_specext.training.moa.train import MoABatch, MoAStep, MoATraining, staircase


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(3)


def test_boundaries_are_the_prompt_and_every_so_many_positions() -> None:
    """The specification's example: five prompt tokens, every sixth position a boundary."""
    response = torch.tensor([[0] * 5 + [1] * 9])
    boundaries = sample_boundaries(response, (5, 5), torch.Generator())
    assert last_verified(boundaries)[0].tolist() == [0, 1, 2, 3, 4, 4, 6, 6, 6, 6, 6, 6, 12, 12]


def test_block_lengths_are_uniform_between_both_ends() -> None:
    response = torch.ones(3000, 60)
    boundaries = sample_boundaries(response, (5, 13), torch.Generator().manual_seed(0))
    assert boundaries[:, 0].all()
    drafted = boundaries[:, 1:].float().argmax(dim=1)
    counts = torch.bincount(drafted, minlength=15).tolist()
    assert [length for length, count in enumerate(counts) if count] == list(range(5, 14))
    assert min(counts[5:14]) > 0.75 * 3000 / 9


def test_one_drafted_position_leaves_every_other_as_a_boundary() -> None:
    boundaries = sample_boundaries(torch.ones(1, 7), (1, 1), torch.Generator())
    assert boundaries[0].tolist() == [True, False, True, False, True, False, True]


def test_masks_follow_their_definition() -> None:
    boundaries = torch.rand(4, 17, generator=torch.Generator().manual_seed(0)) < 0.25
    boundaries[:, 0] = True
    block_only = torch.tensor([False, True, False, True])
    last = last_verified(boundaries)
    memory, tokens, both = memory_mask(last)[:, 0], token_mask(last, block_only)[:, 0], two_key_sets(last)[:, 0]
    for b in range(4):
        for i in range(17):
            s = max(j for j in range(i + 1) if boundaries[b, j])
            assert last[b, i] == s
            for j in range(17):
                assert memory[b, i, j] == (j <= s)
                assert tokens[b, i, j] == (j <= i and (not block_only[b] or j >= s + 1 or j == i))
                assert both[b, i, j] == (j <= s)
                assert both[b, i, 17 + j] == (s < j <= i)


def test_the_staircase_ends_with_its_share_of_the_training() -> None:
    recipe = MoATraining(steps=100, staircase=0.5)
    assert [staircase(step, recipe) for step in (0, 25, 50, 51, 100)] == [1.0, 0.5, 0.0, 0.0, 0.0]
    assert staircase(1, replace(recipe, staircase=0.0)) == 0.0


def by_hand(final: Tensor, wanted: Tensor, head: Tensor, mask: Tensor) -> tuple[float, float]:
    token = feature = count = 0.0
    for b, t in mask.nonzero().tolist():
        p = (wanted[b, t] @ head.T).softmax(dim=-1)
        token -= float((p * (final[b, t] @ head.T).log_softmax(dim=-1)).sum())
        difference = (final[b, t] - wanted[b, t]).abs()
        feature += float(torch.where(difference < 1, difference**2 / 2, difference - 0.5).mean())
        count += 1
    return token / count, feature / count


def means(losses: MoALosses) -> MoALosses:
    entry = None if losses.entry is None else losses.entry / losses.count
    return MoALosses(losses.token / losses.count, losses.feature / losses.count, entry, losses.count)


def test_losses_are_those_of_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    final, wanted, entry, wanted_entry = (2 * torch.randn(2, 7, 8, generator=generator) for _ in range(4))
    head = torch.randn(11, 8, generator=generator)
    mask = torch.rand(2, 7, generator=generator) < 0.6
    token, feature = by_hand(final, wanted, head, mask)
    losses = means(moa_losses(final, wanted, head, mask))
    assert losses.token.item() == pytest.approx(token, rel=1e-4)
    assert losses.feature.item() == pytest.approx(feature, rel=1e-4)
    assert losses.total().item() == pytest.approx(0.1 * token + feature, rel=1e-4)
    _, entry_feature = by_hand(entry, wanted_entry, head, mask)
    losses = means(moa_losses(final, wanted, head, mask, (entry, wanted_entry)))
    assert losses.total().item() == pytest.approx(0.1 * token + 0.5 * feature + 0.5 * entry_feature, rel=1e-4)
    sums = moa_losses(final, wanted, head, mask, (entry, wanted_entry)).sums()
    assert (sums.loss / sums.counts).item() == pytest.approx(losses.total().item())
    terms = {name: (term / count).item() for name, (term, count) in sums.terms.items()}
    assert terms == pytest.approx({"token": token, "feature": feature, "entry": entry_feature}, rel=1e-4)
    everything = means(moa_losses(final, wanted, head, torch.ones_like(mask)))
    assert everything.token.item() != pytest.approx(token, rel=1e-3)


def test_the_token_losses_least_value_is_at_the_targets_distribution() -> None:
    wanted, head = torch.randn(1, 5, 8), torch.randn(11, 8)
    final = wanted.clone().requires_grad_()
    losses = moa_losses(final, wanted, head, torch.ones(1, 5))
    losses.total().backward()
    assert final.grad is not None
    assert final.grad.abs().max() < 1e-6


def losses_of(target: LlamaForCausalLM, model: MoADrafter, boundaries: Tensor, count: bool, used: int = 0) -> MoALosses:
    rows = random_rows(2, 20)
    seen = target_states(target, rows, torch.ones_like(rows, dtype=torch.bool), used)
    layers = last_target_layers(target, used) if used else None
    alone = torch.zeros(2, dtype=torch.bool)
    recipe = MoATraining(count_boundaries=count, bfloat16=False)
    step = MoAStep(model, target.lm_head.weight, layers, recipe)
    return means(step.losses(MoABatch(seen, boundaries, alone)))


def test_boundaries_can_be_left_out_of_the_losses(target: LlamaForCausalLM) -> None:
    model, boundaries = random_drafter(target), sample_boundaries(torch.ones(2, 20), (3, 3), torch.Generator())
    rows = random_rows(2, 20)
    seen = target_states(target, rows, torch.ones_like(rows, dtype=torch.bool), 0)
    last = last_verified(boundaries)
    features = model(seen.embeddings, seen.kv, token_mask(last, torch.zeros(2, dtype=torch.bool)), memory_mask(last))
    for count, mask in ((True, torch.ones_like(boundaries)), (False, ~boundaries)):
        token, feature = by_hand(features.detach(), seen.features, target.lm_head.weight, mask)
        losses = losses_of(target, model, boundaries, count)
        assert losses.token.item() == pytest.approx(token, rel=1e-4)
        assert losses.feature.item() == pytest.approx(feature, rel=1e-4)


@pytest.mark.parametrize("used", [0, 1])
def test_every_weight_is_trained_and_the_target_is_not(target: LlamaForCausalLM, used: int) -> None:
    model = random_drafter(target, target_layer_inference=used)
    boundaries = sample_boundaries(torch.ones(2, 20), (3, 3), torch.Generator())
    losses_of(target, model, boundaries, True, used).total().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name
    assert all(p.grad is None for p in target.parameters())
