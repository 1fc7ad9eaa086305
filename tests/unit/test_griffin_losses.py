"""GRIFFIN's training losses and masks against the official code's numbers, and the masks against their definition."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.griffin_losses import AlignmentMask, TargetDistribution, pass_losses
from tests.unit.oracle import single, training_case, training_drafter
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.griffin.passes import training_passes


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    return training_case()


@pytest.fixture
def drafter(oracle: dict[str, Any]) -> GriffinDrafter:
    return training_drafter(oracle)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def run_oracle_step(drafter: GriffinDrafter, oracle: dict[str, Any], **changes: Any) -> dict[str, list]:
    """All passes with the masking of the official code, backward included."""
    head = oracle["head_weight"]
    options = {"shift": "code", "top_k": oracle["topk_train"], "masked_score": "zero", **changes}
    mask = AlignmentMask(oracle["input_ids"], oracle["base_mask"], options["top_k"], options["shift"])
    target = TargetDistribution.from_logits(oracle["target"] @ head.T)
    seen: dict[str, list] = {"predict": [], "regress": [], "masks": [], "losses": []}
    ids = oracle["input_ids"]
    passes = training_passes(
        drafter, ids, oracle["hidden_states"], single(ids), oracle["n_pass"], options["masked_score"]
    )
    total = torch.zeros(())
    for predict, regress in passes:
        logits = predict @ head.T
        losses = pass_losses(regress, logits, oracle["target"], target, mask.current())
        seen["masks"].append(mask.current())
        mask.update(logits)
        for name, value in (("predict", predict), ("regress", regress), ("losses", losses)):
            seen[name].append(value)
        total = total + losses.total(1.0, 0.1, 0.5)
    total.backward()
    return seen


def test_every_pass_equals_the_official_code(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    seen = run_oracle_step(drafter, oracle)
    for n in range(oracle["n_pass"]):
        for name in ("predict", "regress"):
            expected = oracle[name][n]
            # Features reach 85, and single ones near zero are sums of large terms.
            assert (seen[name][n] - expected).abs().max() < 1e-5 * expected.abs().max()


def test_loss_masks_equal_the_official_code(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    seen = run_oracle_step(drafter, oracle)
    for n in range(oracle["n_pass"]):
        assert torch.equal(seen["masks"][n], oracle["terms"][n]["mask_used"])


def test_losses_equal_the_official_code(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    seen = run_oracle_step(drafter, oracle)
    for losses, terms, total in zip(seen["losses"], oracle["terms"], oracle["pass_loss"], strict=True):
        assert losses.feature.item() == pytest.approx(terms["vloss"], rel=1e-4, abs=1e-4)
        assert losses.token.item() == pytest.approx(terms["ploss"], rel=1e-4, abs=1e-4)
        assert losses.top_k.item() == pytest.approx(terms["topk_loss"], rel=1e-4, abs=1e-4)
        assert losses.total(1.0, 0.1, 0.5).item() == pytest.approx(total, rel=1e-4, abs=1e-4)


def test_gradients_equal_the_official_code(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    run_oracle_step(drafter, oracle)
    actual = {name: p.grad for name, p in drafter.named_parameters() if p.requires_grad}
    assert actual.keys() == oracle["grads"].keys()
    for name, expected in oracle["grads"].items():
        assert_same(actual[name], expected)


def test_the_papers_mask_index_gives_other_masks(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    masks = run_oracle_step(drafter, oracle, shift="paper")["masks"]
    assert torch.equal(masks[0], oracle["terms"][0]["mask_used"])
    assert not torch.equal(masks[1], oracle["terms"][1]["mask_used"])


def test_another_top_k_gives_other_masks(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    masks = run_oracle_step(drafter, oracle, top_k=8)["masks"]
    assert not torch.equal(masks[1], oracle["terms"][1]["mask_used"])


def test_the_ordinary_softmax_gives_other_features(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    seen = run_oracle_step(drafter, oracle, masked_score="-inf")
    assert not torch.allclose(seen["predict"][0], oracle["predict"][0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shift", ["code", "paper"])
def test_a_position_counts_in_pass_n_when_the_last_tokens_were_all_hits(shift: Any) -> None:
    """Pass n needs hits of pass j at n - 1 - j positions before, for the paper's index at one more."""
    generator = torch.Generator().manual_seed(1)
    length, passes = 40, 4
    input_ids = torch.randint(0, 8, (2, length), generator=generator)
    all_logits = torch.randn(passes, 2, length, 8, generator=generator)
    mask = AlignmentMask(input_ids, torch.ones_like(input_ids), top_k=5, shift=shift)
    counted = 0
    for n in range(1, passes + 1):
        current = mask.current()
        for b in range(2):
            for s in range(passes, length - 1):
                hits = []
                for j in range(1, n):
                    at = s - (n - 1 - j) - (shift == "paper")
                    hits.append(input_ids[b, at + 1] in all_logits[j - 1, b, at].topk(5).indices)
                assert bool(current[b, s]) == all(hits)
                counted += all(hits) and n == passes
        mask.update(all_logits[n - 1])
    assert counted > 0
