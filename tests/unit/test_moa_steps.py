"""MoA drafts step by step what it computes over a whole sequence."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.moa_masks import memory_mask, token_mask, two_key_sets
from tests.unit.moa_models import (
    LENGTH,
    assert_same,
    causal,
    is_same,
    plain_drafter,
    scaled_llama,
    seen,
)
from vllm_specext.methods.layers import KV
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.methods.moa.target_layers import TargetLayers
from vllm_specext.training.moa.blocks import last_verified
from vllm_specext.training.moa.target import (
    TargetStates,
    last_target_layers,
)


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return scaled_llama()


@pytest.fixture
def drafter() -> MoADrafter:
    return plain_drafter()


def cut(kv: KV, length: int) -> KV:
    return kv[0][:, :, :length], kv[1][:, :, :length]


def draft_steps(
    drafter: MoADrafter, rows: TargetStates, verified: int, steps: int, last_layers: TargetLayers | None = None
) -> list[Tensor]:
    """Features of ``steps`` queries from position ``verified`` on, one at a time and with caches, when the target has
    keys and values of the ``verified`` tokens before: what enters ``lm_head``."""
    at = torch.arange(verified)[None]
    memory = drafter.absorb(rows.kv[:, :verified], at)
    _, tokens = drafter.read(rows.embeddings[:, :verified], at, causal(verified))
    drafted = [cut(kv, verified) for kv in rows.last_kvs]
    found = []
    for n in range(verified, verified + steps):
        at = torch.tensor([[n]])
        hidden, tokens = drafter.read(rows.embeddings[:, n : n + 1], at, None, tokens)
        feature = drafter.predict(hidden, at, memory)
        if last_layers is not None:
            feature, drafted = last_layers(feature, at, None, drafted)
        found.append(feature[:, 0])
    return found


def whole_sequence(
    drafter: MoADrafter, rows: TargetStates, boundaries: Tensor, last_layers: TargetLayers | None = None
) -> Tensor:
    last = last_verified(boundaries)
    everywhere = torch.zeros(len(boundaries), dtype=torch.bool)
    features = drafter(rows.embeddings, rows.kv, token_mask(last, everywhere), memory_mask(last))
    if last_layers is None:
        return features
    at = torch.arange(LENGTH)[None]
    return last_layers(features, at, two_key_sets(last), rows.last_kvs)[0]


@pytest.mark.parametrize("used", [0, 1, 3])
def test_training_computes_what_drafting_computes(drafter: MoADrafter, target: LlamaForCausalLM, used: int) -> None:
    rows = seen(target, used)
    layers = last_target_layers(target, used) if used else None
    boundaries = torch.zeros(2, LENGTH, dtype=torch.bool)
    starts = [0, 1, 2, 9, 16]
    boundaries[:, starts] = True
    features = whole_sequence(drafter, rows, boundaries, layers)
    for boundary, following in zip(starts, [*starts[1:], LENGTH], strict=True):
        steps = draft_steps(drafter, rows, boundary + 1, following - boundary - 1, layers)
        for step, expected in enumerate(steps, start=1):
            assert_same(features[:, boundary + step], expected)


@pytest.mark.parametrize("used", [0, 1])
def test_another_boundary_gives_another_feature(drafter: MoADrafter, target: LlamaForCausalLM, used: int) -> None:
    """The comparison above would notice a query that sees one verified token too many."""
    rows = seen(target, used)
    layers = last_target_layers(target, used) if used else None
    assert not is_same(draft_steps(drafter, rows, 9, 4, layers)[-1], draft_steps(drafter, rows, 10, 3, layers)[-1])


def test_drafted_keys_and_values_take_part_in_target_layers(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    """Second negative control: the target's own keys and values at drafted positions give something else."""
    rows, layers = seen(target, 1), last_target_layers(target, 1)
    boundaries = torch.zeros(2, LENGTH, dtype=torch.bool)
    boundaries[:, 0] = True
    expected = whole_sequence(drafter, rows, boundaries, layers)
    last = last_verified(boundaries)
    features = drafter(rows.embeddings, rows.kv, token_mask(last, torch.zeros(2, dtype=torch.bool)), memory_mask(last))
    mask = torch.cat((causal(LENGTH), torch.zeros_like(causal(LENGTH))), dim=-1)
    truth, _ = layers(features, torch.arange(LENGTH)[None], mask, rows.last_kvs)
    assert not is_same(truth[:, 5:], expected[:, 5:])


def test_dropped_draft_entries_change_nothing(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    """After a rejection SA's cache is cut back to the root; what follows equals a cache that never had the drafts."""
    rows = seen(target)
    prefix = torch.arange(10)[None]
    _, cache = drafter.read(rows.embeddings[:, :10], prefix, causal(10))
    wrong = rows.embeddings[:, [20, 21, 22]]
    _, with_drafts = drafter.read(wrong, torch.arange(10, 13)[None], causal(13, 3), cache)
    following = rows.embeddings[:, 10:14]
    at = torch.arange(10, 14)[None]
    hidden, kept = drafter.read(following, at, causal(14, 4), cut(with_drafts, 10))
    expected, fresh = drafter.read(rows.embeddings[:, :14], torch.arange(14)[None], causal(14))
    assert_same(hidden, expected[:, 10:])
    for one, other in zip(kept, fresh, strict=True):
        assert_same(one, other)
    stale, _ = drafter.read(following[:, 3:], at[:, 3:], None, with_drafts)
    assert not is_same(stale, expected[:, 13:])


def test_memory_of_tokens_that_come_later_is_appended(drafter: MoADrafter, target: LlamaForCausalLM) -> None:
    rows = seen(target)
    at = torch.arange(LENGTH)[None]
    whole = drafter.absorb(rows.kv, at)
    parts = [drafter.absorb(rows.kv[:, a:b], at[:, a:b]) for a, b in ((0, 11), (11, 12), (12, LENGTH))]
    for index in range(2):
        assert_same(torch.cat([part[index] for part in parts], dim=2), whole[index])
