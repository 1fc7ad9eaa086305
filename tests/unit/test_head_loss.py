"""The losses that are made in chunks of positions, against those that make all logits at once."""

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from tests.unit.griffin_losses import AlignmentMask, TargetDistribution, token_loss
from tests.unit.largest_tensor import Largest
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.head_loss import Alignment, HeadLosses, HeadWeights, MaskShift, head_losses
from vllm_specext.training.logits import PLAINLY_SCORED, LastNorm, Logits, Scored, logits_of

PASSES, PACKS, LENGTH, WIDTH = 3, 2, 37, 16
CHUNK = 10
"""Does not divide the 74 positions, and ends in the middle of a pack."""
WEIGHTS = HeadWeights(token=0.1, top_k=0.5)
SCALES = (1.0, 0.3, 2.0)
"""Of the passes' sums in the loss, as the division by their counts makes them."""


class Case(NamedTuple):
    head: Tensor
    features: list[Tensor]
    wanted: Tensor
    input_ids: Tensor
    counted: Tensor
    positions: Tensor


def made(vocabulary: int) -> Case:
    """Rows of 14, 23, 9 and 28 tokens in two packs. The drafter is close to the target, so that there are hits."""
    generator = torch.Generator().manual_seed(vocabulary)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    head, wanted = normal(vocabulary, WIDTH), normal(PACKS, LENGTH, WIDTH)
    features = [(wanted + 0.7 * normal(PACKS, LENGTH, WIDTH)).requires_grad_() for _ in range(PASSES)]
    likely = (wanted @ head.T).argmax(dim=-1)
    positions = torch.stack([torch.cat((torch.arange(n), torch.arange(LENGTH - n))) for n in (14, 9)])
    counted = torch.rand(PACKS, LENGTH, generator=generator) < 0.9
    return Case(head, features, wanted, likely.roll(1, dims=1), counted, positions)


def as_vllm_makes(products: Tensor, logits: Logits) -> Tensor:
    capped = products if logits.soft_cap is None else logits.soft_cap * torch.tanh(products / logits.soft_cap)
    return logits.scale * capped


def naive(case: Case, shift: MaskShift, top_k: int = 3, scored: Scored = PLAINLY_SCORED) -> HeadLosses:
    mask = AlignmentMask(case.input_ids, case.counted.long(), top_k, shift, case.positions)
    target = TargetDistribution.from_logits(as_vllm_makes(case.wanted @ case.head.T, scored.target))
    token, on_best, masks = [], [], []
    for features in case.features:
        logits = as_vllm_makes(features @ case.head.T, scored.drafter)
        masks.append(mask.current().bool())
        mask.update(logits)
        best = logits.logsumexp(dim=-1, keepdim=True) - logits.gather(-1, target.best_ids)
        token.append((token_loss(logits, target.probabilities) * masks[-1]).sum())
        on_best.append(((target.best_probabilities * best).sum(dim=-1) * masks[-1]).sum())
    sums = torch.stack(token), torch.stack(on_best)
    return HeadLosses(WEIGHTS.token * sums[0] + WEIGHTS.top_k * sums[1], *sums, torch.stack(masks))


def chunked(
    case: Case, shift: MaskShift, top_k: int = 3, chunk: int = CHUNK, scored: Scored = PLAINLY_SCORED
) -> HeadLosses:
    alignment = Alignment(case.input_ids.roll(-1, dims=1), case.positions, top_k, shift)
    return head_losses(case.head, case.features, case.wanted, case.counted, WEIGHTS, alignment, scored, chunk)


def gradients(losses: HeadLosses, case: Case) -> list[Tensor]:
    return list(torch.autograd.grad(losses.loss @ torch.tensor(SCALES), case.features))


@pytest.mark.parametrize("vocabulary", [61, 2048])
@pytest.mark.parametrize("shift", ["code", "paper"])
def test_chunks_give_what_all_logits_at_once_give(vocabulary: int, shift: Any) -> None:
    case = made(vocabulary)
    ours, expected = chunked(case, shift), naive(case, shift)
    assert torch.equal(ours.masks, expected.masks)
    shares = ours.masks.float().mean(dim=(1, 2)).tolist()
    assert shares[0] > shares[1] > shares[2] > 0.05
    for name in ("loss", "token", "top_k"):
        torch.testing.assert_close(getattr(ours, name), getattr(expected, name), rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(ours, case), gradients(expected, case), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


CAPPED, SCALED = Logits(soft_cap=3.0), Logits(scale=0.25)
BOTH, STEEP = Logits(scale=0.5, soft_cap=2.0), Logits(scale=2.0, soft_cap=4.0)


@pytest.mark.parametrize(
    "scored",
    [
        Scored(CAPPED, CAPPED),
        Scored(target=CAPPED),
        Scored(SCALED, SCALED),
        Scored(Logits(scale=0.5, soft_cap=2.0), Logits(scale=2.0, soft_cap=4.0)),
    ],
    ids=["capped", "the target's capped", "scaled", "both"],
)
def test_logits_are_capped_and_scaled_as_a_target_makes_them(scored: Scored) -> None:
    case = made(61)
    ours, expected, plain = (
        chunked(case, "code", scored=scored),
        naive(case, "code", scored=scored),
        naive(case, "code"),
    )
    torch.testing.assert_close(ours.loss, expected.loss, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours.loss, plain.loss, rtol=0.02)
    found, wanted, others = (gradients(losses, case) for losses in (ours, expected, plain))
    for one, other, another in zip(found, wanted, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(one, another, rtol=0.02, atol=1e-4)


def test_a_targets_states_go_through_its_last_norm_and_a_drafters_do_not() -> None:
    case, norm = made(61), LastNorm(torch.full((WIDTH,), 0.4), 1e-5)
    logits = Logits(soft_cap=3.0, norm=norm)
    ours = chunked(case, "code", scored=Scored(logits, logits.without_norm()))
    expected = naive(case._replace(wanted=norm.of(case.wanted)), "code", scored=Scored(CAPPED, CAPPED))
    torch.testing.assert_close(ours.loss, expected.loss, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(ours.loss, naive(case, "code", scored=Scored(CAPPED, CAPPED)).loss, rtol=0.02)
    for one, other in zip(gradients(ours, case), gradients(expected, case), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="the drafter's features would go through a norm"):
        Scored(logits, logits)


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, Logits()),
        ({"final_logit_softcapping": None, "logit_scale": None}, Logits()),
        ({"model_type": "gemma4_text", "final_logit_softcapping": 30.0}, Logits(soft_cap=30.0)),
        ({"model_type": "cohere2", "logit_scale": 0.25}, Logits(scale=0.25)),
        ({"model_type": "granite", "logits_scaling": 16}, Logits(scale=1 / 16)),
        ({"model_type": "hyperclovax", "logits_scaling": 0.125}, Logits(scale=0.125)),
        # vLLM's class divides the hidden state that is captured.
        ({"model_type": "minicpm3", "hidden_size": 2560, "dim_model_base": 256}, Logits()),
    ],
    ids=["plain", "null", "gemma", "cohere", "granite", "hyperclova", "minicpm"],
)
def test_configurations_say_how_logits_are_made(config: dict[str, Any], expected: Logits) -> None:
    assert logits_of(config) == expected


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"final_logit_softcapping": "30"}, "final_logit_softcapping is '30'; expected a number above 0"),
        ({"logits_scaling": -1}, "logits_scaling is -1; expected a number above 0"),
        ({"output_multiplier": 0.5, "final_logit_softcapping": 20.0}, "output_multiplier is 0.5, so that its logits"),
        ({"use_mup": True}, "use_mup is True, so that its logits are made in a way that no training here knows"),
    ],
)
def test_other_ways_to_make_logits_are_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        logits_of(config)


def test_the_comparison_notices_another_mask() -> None:
    case = made(61)
    assert not torch.equal(chunked(case, "code").masks, naive(case, "paper").masks)
    assert not torch.equal(chunked(case, "code", top_k=1).masks, naive(case, "code").masks)
    one, other = gradients(chunked(case, "code"), case), gradients(naive(case, "code", top_k=8), case)
    assert not torch.allclose(one[1], other[1], atol=1e-3)


def test_the_mask_does_not_look_back_across_a_rows_beginning() -> None:
    """Row by row gives the same masks; as one row, or around the end as published, they are others."""
    case = made(61)
    packed = chunked(case, "code").masks[:, 0]

    def alone(row: slice) -> Tensor:
        features = [x.detach()[:1, row] for x in case.features]
        ids, wanted, counted = case.input_ids.roll(-1, dims=1)[:1, row], case.wanted[:1, row], case.counted[:1, row]
        alignment = Alignment(ids, case.positions[:1, row])
        return head_losses(case.head, features, wanted, counted, WEIGHTS, alignment).masks[:, 0]

    assert torch.equal(packed, torch.cat((alone(slice(0, 14)), alone(slice(14, LENGTH))), dim=1))
    joined = case._replace(positions=torch.arange(LENGTH).expand(PACKS, -1))
    # A miss at the end of the first row, at 13, would make the second row's beginning not count.
    missed = case.input_ids.clone()
    missed[0, 14] = (missed[0, 14] + 30) % 61
    changes = {"input_ids": missed, "counted": torch.ones_like(case.counted)}
    one, other = (chunked(x._replace(**changes), "paper").masks for x in (case, joined))
    assert not one[1, 0, 14:].equal(other[1, 0, 14:])
    assert one[1:, 0, 14].all()
    assert not other[1, 0, 14]


def test_without_an_alignment_every_pass_counts_the_same() -> None:
    case = made(61)
    losses = head_losses(case.head, case.features, case.wanted, case.counted, HeadWeights(), chunk=CHUNK)
    assert all(torch.equal(mask, case.counted) for mask in losses.masks)
    probabilities = (case.wanted @ case.head.T).softmax(dim=-1)
    for n, features in enumerate(case.features):
        expected = (token_loss(features @ case.head.T, probabilities) * case.counted).sum()
        torch.testing.assert_close(losses.loss[n], expected, rtol=1e-5, atol=1e-5)


def test_logits_under_autocast_are_those_of_its_dtype() -> None:
    case = made(2048)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, expected = chunked(case, "code"), naive(case, "code")
        # Later passes count what is among the best three, and bfloat16 has ties there. The sums of the naive one
        # are in bfloat16 as well.
        torch.testing.assert_close(ours.loss[0], expected.loss[0], rtol=1e-3, atol=0)
        assert ours.loss.dtype == torch.float32
        assert all(x.dtype == torch.float32 for x in gradients(ours, case))
    assert not torch.allclose(ours.loss, chunked(case, "code").loss, rtol=1e-6)


def test_a_head_that_is_trained_is_refused() -> None:
    case = made(61)
    with pytest.raises(ValueError, match="head is trained"):
        chunked(case._replace(head=case.head.requires_grad_()), "code")


def largest(losses: Callable[[Case, MaskShift], HeadLosses], case: Case) -> int:
    with Largest() as seen:
        losses(case, "code").loss.sum().backward()
    return seen.numbers


def test_no_tensor_has_the_logits_of_all_positions() -> None:
    case = made(2048)
    assert largest(chunked, case) == max(CHUNK * 2048, case.head.numel()) < PACKS * LENGTH * 2048 / 4
    assert largest(naive, case) == PACKS * LENGTH * 2048
