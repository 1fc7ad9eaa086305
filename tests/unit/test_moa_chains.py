"""What MoA's training takes from the target, and simulated chains against drafting step by step."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.moa_drafters import random_drafter
from tests.unit.tiny_llama import random_rows, tiny_llama
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.training.moa.chains import simulate_moa_chains
from vllm_specext.training.moa.target import TargetStateReader, last_target_layers, target_states


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(3)


def test_batches_are_padded_to_the_longest_row_and_padding_does_not_count(target: LlamaForCausalLM) -> None:
    rows = [row[: 8 + i] for i, row in enumerate(random_rows(6, 14))]
    source = TargetStateReader(target, rows, 3, 0, 1)
    epoch = [source.take(), source.take()]
    assert sorted(n for batch in epoch for n in batch.response.sum(dim=1).tolist()) == [len(row) for row in rows]
    for batch in epoch:
        assert batch.kv.shape == (3, 13, 3, 32)
        for b, length in enumerate(batch.response.sum(dim=1).tolist()):
            alone = target_states(target, rows[length - 8][None], torch.ones(1, length, dtype=torch.bool), 1)
            for name in ("embeddings", "kv", "entry", "features"):
                actual, expected = getattr(batch, name)[b, :length], getattr(alone, name)[0]
                torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_only_what_is_given_as_learnt_counts(target: LlamaForCausalLM) -> None:
    rows = [row[: 8 + i] for i, row in enumerate(random_rows(4, 12))]
    learnt = [torch.arange(len(row)) % 3 == i for i, row in enumerate(rows)]
    batch = TargetStateReader(target, rows, 4, 0, learnt=learnt).take()
    for b in range(4):
        (own,) = (
            i for i, row in enumerate(rows) if torch.equal(batch.embeddings[b, : len(row)], embedded(target, row))
        )
        assert batch.response[b, : len(rows[own])].tolist() == learnt[own].tolist()
        assert not batch.response[b, len(rows[own]) :].any()


def embedded(target: LlamaForCausalLM, row: Tensor) -> Tensor:
    embeddings: Tensor = target.get_input_embeddings()(row)
    return embeddings


def test_entry_and_features_are_what_the_specification_says(target: LlamaForCausalLM) -> None:
    rows = random_rows(2, 12)
    output = target(rows, output_hidden_states=True)
    for used in (0, 1, 2):
        seen = target_states(target, rows, torch.ones_like(rows, dtype=torch.bool), used)
        assert torch.equal(seen.entry, output.hidden_states[-1 - used])
        assert torch.equal(seen.features, output.hidden_states[-1])
        assert len(seen.last_kvs) == used


@pytest.mark.parametrize("count", [0, 4])
def test_a_number_of_target_layers_that_there_are_not_is_refused(target: LlamaForCausalLM, count: int) -> None:
    with pytest.raises(ConfigurationError, match=f"target_layer_inference is {count}, but the target has 3 layers"):
        last_target_layers(target, count)


def chain_step_by_step(model: MoADrafter, target: LlamaForCausalLM, known: Tensor, length: int) -> Tensor:
    """From plain calls without caches: ``known`` ``[B, n + 1]``, of which the first ``n`` are verified."""
    used = model.shape.target_layer_inference
    verified = known.shape[1] - 1
    seen = target_states(target, known[:, :verified], torch.ones(1), used)
    memory = model.absorb(seen.kv, torch.arange(verified)[None])
    layers = last_target_layers(target, used) if used else None
    for _ in range(length):
        at = torch.arange(known.shape[1])[None]
        hidden, _ = model.read(target.get_input_embeddings()(known), at, (at <= at.T)[None, None])
        new = at[:, verified:]
        feature = model.predict(hidden[:, verified:], new, memory)
        if layers is not None:
            causal = (at <= new.T)[None, None]
            feature, _ = layers(feature, new, causal, seen.last_kvs)
        known = torch.cat((known, target.lm_head(feature[:, -1:]).argmax(dim=-1)), dim=1)
    return known[:, verified + 1 :]


@torch.no_grad()
@pytest.mark.parametrize("changes", [{}, {"target_layer_inference": 2}, {"with_lsa": False}], ids=str)
def test_simulated_chains_are_those_of_step_by_step_drafting(target: LlamaForCausalLM, changes: dict) -> None:
    model = random_drafter(target, **changes)
    rows, used = random_rows(3, 14, seed=5), model.shape.target_layer_inference
    seen = target_states(target, rows, torch.ones_like(rows, dtype=torch.bool), used)
    layers = last_target_layers(target, used) if used else None
    embedding = target.get_input_embeddings().weight
    chains = simulate_moa_chains(model, embedding, target.lm_head.weight, layers, seen, 4)
    assert chains.shape == (3, 13, 4)
    for start in (0, 1, 6, 12):
        assert torch.equal(chains[:, start], chain_step_by_step(model, target, rows[:, : start + 2], 4))
    assert len({tuple(chain) for chain in chains.flatten(0, 1).tolist()}) > 10
