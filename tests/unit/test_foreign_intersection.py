"""TLI's arithmetic: which tokens are shared, and that a step that drafts from them follows the target."""

import math

import pytest
import torch
from torch import Tensor

from vllm_specext.methods.foreign_vocab.distributions.intersection import Intersection
from vllm_specext.methods.foreign_vocab.distributions.overlap import coverage, shared_tokens

TARGET = [None, b"a", b"b", b"ab", b" the", b"c", b"a", b"\xc3", b"only here", None]
DRAFTER = [b"b", b"there", b" the", None, b"a", b"", b"c", b"\xc3", b"a", None, b"b"]
ENDS = {"target_ends": [9, 0], "drafter_ends": [3]}


def draft_probabilities(logits: Tensor, temperature: Tensor) -> Tensor:
    """What vLLM's sampler draws from logits ``[R, I]``, and what its verification makes of them."""
    return (logits / temperature[:, None]).softmax(dim=-1)


def toy() -> Intersection:
    return Intersection(shared_tokens(TARGET, DRAFTER, **ENDS), len(TARGET))


def random_logits(rows: int, size: int, seed: int) -> Tensor:
    return 2 * torch.randn(rows, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def emitted(p: Tensor, drawn: Tensor, told: Tensor) -> Tensor:
    """What a step emits that drafts from ``drawn``, accepts with min(1, p/told), else draws from p less told."""
    accept = torch.where(told > 0, p / told, torch.inf).clamp(max=1)
    left = (p - told).clamp(min=0)
    rejected = 1 - (drawn * accept).sum(dim=1, keepdim=True)
    return drawn * accept + rejected * left / left.sum(dim=1, keepdim=True)


def test_tokens_are_shared_by_their_bytes_and_the_lowest_ids_count() -> None:
    shared = shared_tokens(TARGET, DRAFTER, **ENDS)
    assert shared == {0: 2, 2: 4, 3: 0, 4: 1, 6: 5, 7: 7}
    assert list(shared) == sorted(shared)
    assert len(set(shared.values())) == len(shared)


def test_markers_are_shared_as_ends_only_whatever_their_ids() -> None:
    assert shared_tokens([None, b"x"], [b"x", None], target_ends=[], drafter_ends=[1]) == {0: 1}
    assert shared_tokens([None, b"x"], [b"x", None], target_ends=[0], drafter_ends=[]) == {0: 1}
    assert shared_tokens([None, b"x"], [b"x", None], target_ends=[0], drafter_ends=[1]) == {0: 1, 1: 0}


def test_an_end_with_bytes_is_an_end_and_no_text() -> None:
    assert shared_tokens([b"</s>", b"x"], [b"</s>", b"x"], target_ends=[0], drafter_ends=[]) == {1: 1}


def test_ends_beyond_the_embedding_do_not_exist() -> None:
    shared = shared_tokens([b"x", None], [b"x", None], target_ends=[2, 1], drafter_ends=[1, -1])
    assert shared == {0: 0, 1: 1}
    assert shared_tokens([b"x"], [b"x", None], target_ends=[5], drafter_ends=[1]) == {0: 0}


def test_coverage_counts_a_texts_tokens_that_can_be_drafted() -> None:
    assert coverage([], {1}) == 0


def test_a_pruned_head_says_what_the_selected_logits_say_and_is_a_copy() -> None:
    shared = toy()
    hidden, head = random_logits(3, 7, 0), random_logits(len(DRAFTER), 7, 1)
    before = head.clone()
    pruned = shared.prune(head)
    torch.testing.assert_close(hidden @ pruned.T, shared.select(hidden @ head.T), rtol=0, atol=1e-12)
    pruned.zero_()
    assert torch.equal(head, before)
    bias = head[:, 0]
    assert torch.equal(shared.prune(bias), bias[shared.kept])


def test_the_draft_probabilities_are_the_drafters_given_that_it_drafts_a_shared_token() -> None:
    shared, logits = toy(), random_logits(2, len(DRAFTER), 2)
    temperature = torch.tensor([1.0, 0.5], dtype=torch.float64)
    full = (logits / temperature[:, None]).softmax(dim=1)[:, shared.kept]
    restricted = draft_probabilities(shared.select(logits), temperature)
    torch.testing.assert_close(restricted, full / full.sum(dim=1, keepdim=True), rtol=0, atol=1e-12)


def test_scattered_values_stand_at_the_targets_ids_and_nowhere_else() -> None:
    shared = toy()
    logits = shared.select(random_logits(2, len(DRAFTER), 3))
    scattered = shared.scatter(logits, -math.inf)
    assert scattered.shape == (2, len(TARGET))
    for text in (b"a", b"b", b" the", b"c", b"\xc3"):
        drafter_place = shared.kept.tolist().index(DRAFTER.index(text))
        assert torch.equal(scattered[:, TARGET.index(text)], logits[:, drafter_place])
    assert (scattered == -math.inf).sum().item() == 2 * (len(TARGET) - len(shared.kept))


def probabilities(shared: Intersection) -> tuple[Tensor, Tensor]:
    """The target's ``[200, T]``, and the drafter's ``[200, I]``."""
    draft = shared.select(random_logits(200, len(DRAFTER), 5))
    restricted = draft_probabilities(draft, torch.ones(200, dtype=torch.float64))
    return random_logits(200, len(TARGET), 4).softmax(dim=1), restricted


def test_a_step_emits_the_targets_distribution() -> None:
    shared = toy()
    p, restricted = probabilities(shared)
    q = shared.scatter(restricted, 0)
    torch.testing.assert_close(emitted(p, q, q), p, rtol=0, atol=1e-12)


def test_a_step_that_attaches_the_probabilities_in_another_order_does_not() -> None:
    shared = toy()
    p, restricted = probabilities(shared)
    wrong = emitted(p, shared.scatter(restricted, 0), shared.scatter(restricted.roll(1, dims=1), 0))
    torch.testing.assert_close(wrong.sum(dim=1), p.sum(dim=1))
    assert (wrong - p).abs().max() > 0.1


def test_a_step_that_restricts_the_target_to_the_shared_tokens_does_not() -> None:
    shared = toy()
    p, restricted = probabilities(shared)
    q = shared.scatter(restricted, 0)
    restricted = shared.scatter(p[:, shared.target_ids], 0)
    wrong = emitted(restricted / restricted.sum(dim=1, keepdim=True), q, q)
    torch.testing.assert_close(wrong.sum(dim=1), p.sum(dim=1))
    assert (wrong - p).abs().max() > 0.1


def test_sampled_steps_have_the_targets_distribution_within_noise() -> None:
    shared, rounds = toy(), 100_000
    generator = torch.Generator().manual_seed(6)
    p = random_logits(1, len(TARGET), 7).softmax(dim=1)[0].float()
    restricted = draft_probabilities(shared.select(random_logits(1, len(DRAFTER), 8)).float(), torch.ones(1))
    q = shared.scatter(restricted, 0)[0]
    drafts = shared.target_ids[restricted[0].multinomial(rounds, replacement=True, generator=generator)]
    accepted = torch.rand(rounds, generator=generator) < (p / q)[drafts]
    others = (p - q).clamp(min=0).multinomial(rounds, replacement=True, generator=generator)
    found = torch.where(accepted, drafts, others).bincount(minlength=len(TARGET)) / rounds
    assert (found - p).abs().sum() / 2 < 0.005
    assert accepted.float().mean().item() == pytest.approx(torch.minimum(p, q).sum().item(), abs=0.01)
