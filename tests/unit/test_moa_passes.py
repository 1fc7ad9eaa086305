"""MoA's training pass, which has a few queries at a time and ranges of keys, against masks over all keys at once."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.moa_masks import memory_mask, token_mask, two_key_sets
from tests.unit.moa_models import LENGTH, assert_same, is_same, plain_drafter, scaled_llama, seen
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.training import packed_attention
from vllm_specext.training.moa.blocks import last_verified
from vllm_specext.training.moa.passes import drafted_features, through_target_layers
from vllm_specext.training.moa.target import TargetStates, last_target_layers


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_attention.attend, "__defaults__", (None, 10))


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return scaled_llama()


@pytest.fixture
def drafter() -> MoADrafter:
    return plain_drafter().requires_grad_(True)


BLOCK_ONLY = torch.tensor([False, True])


def blocks() -> Tensor:
    boundaries = torch.rand(2, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.3
    boundaries[:, 0] = True
    return last_verified(boundaries)


def masked(drafter: MoADrafter, rows: TargetStates, last: Tensor, used: int, target: LlamaForCausalLM) -> Tensor:
    features = drafter(rows.embeddings, rows.kv, token_mask(last, BLOCK_ONLY), memory_mask(last))
    if not used:
        return features
    layers, at = last_target_layers(target, used), torch.arange(LENGTH)[None]
    return layers(features, at, two_key_sets(last), rows.last_kvs)[0]


def ranged(drafter: MoADrafter, rows: TargetStates, last: Tensor, used: int, target: LlamaForCausalLM) -> Tensor:
    features = drafted_features(drafter, rows.embeddings, rows.kv, last, BLOCK_ONLY)
    return through_target_layers(last_target_layers(target, used), features, rows.last_kvs, last) if used else features


@pytest.mark.parametrize("used", [0, 2])
def test_ranges_are_the_masks(drafter: MoADrafter, target: LlamaForCausalLM, used: int) -> None:
    rows, last = seen(target, used), blocks()

    def run(passes: Callable[..., Tensor]) -> tuple[Tensor, list[Tensor]]:
        drafter.zero_grad()
        features = passes(drafter, rows, last, used, target)
        features.square().sum().backward()
        return features.detach(), [p.grad.clone() for p in drafter.parameters() if p.grad is not None]

    (ours, gradients), (expected, others) = run(ranged), run(masked)
    assert_same(ours, expected)
    assert len(gradients) == len(others) == len(list(drafter.parameters()))
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)
    other_blocks = ranged(drafter, rows, (last - 1).clamp(min=0), used, target)
    assert not is_same(other_blocks.detach(), expected)
    assert not is_same(ours[0], ours[1])
