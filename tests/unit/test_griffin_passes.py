"""GRIFFIN's passes over a sequence, and simulated chains, against drafting step by step."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.unit.oracle import single, training_case, training_drafter
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.griffin.passes import simulate_chains, training_passes


@pytest.fixture(scope="module")
def oracle() -> dict[str, Any]:
    return training_case()


@pytest.fixture
def drafter(oracle: dict[str, Any]) -> GriffinDrafter:
    return training_drafter(oracle)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def draft_steps(model: GriffinDrafter, tokens: Tensor, features: Tensor, start: int, steps: int) -> list[tuple]:
    """Prefill inputs 0..start, then feed back the regress feature with ``tokens``: predict and regress of each step."""
    causal = torch.ones(start + 1, start + 1, dtype=torch.bool).tril()[None, None]
    ids, positions = tokens[:, : start + 1], torch.arange(start + 1)[None]
    predict, regress, past = model(ids, features[:, : start + 1], positions, causal)
    outputs = [(predict[:, -1], regress[:, -1])]
    for step in range(1, steps):
        ids = tokens[:, start + step, None] if start + step < tokens.shape[1] else outputs[-1][0].argmax(-1)[:, None]
        mask = torch.ones(1, 1, 1, start + step + 1, dtype=torch.bool)
        predict, regress, past = model(ids, outputs[-1][1][:, None], torch.tensor([[start + step]]), mask, past)
        outputs.append((predict[:, -1], regress[:, -1]))
    return outputs


@torch.no_grad()
def test_a_later_pass_is_a_later_step_of_a_chain(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    tokens, features = oracle["input_ids"], oracle["hidden_states"]
    length, passes = tokens.shape[1], 4
    outputs = list(training_passes(drafter, tokens, features, single(tokens), passes))
    for start in (0, 1, 5, length - passes):
        for n, (predict, regress) in enumerate(draft_steps(drafter, tokens, features, start, passes)):
            assert_same(outputs[n][0][:, start + n], predict)
            assert_same(outputs[n][1][:, start + n], regress)


@torch.no_grad()
def test_simulated_chains_are_those_of_step_by_step_drafting(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    tokens, features, head = oracle["input_ids"], oracle["hidden_states"], oracle["head_weight"]
    chains = simulate_chains(drafter, head, tokens, features, 4)
    for start in (0, 3, tokens.shape[1] - 1):
        known = tokens[:, : start + 1]
        for step in range(4):
            predict, _ = draft_steps(drafter, known, features, start, step + 1)[-1]
            drafted = (predict @ head.T).argmax(dim=-1)
            assert torch.equal(chains[:, start, step], drafted)
            known = torch.cat((known, drafted[:, None]), dim=1)


def test_gradients_stop_between_passes(drafter: GriffinDrafter, oracle: dict[str, Any]) -> None:
    d = drafter.shape.hidden_size
    ids = oracle["input_ids"]
    _, (predict, _) = training_passes(drafter, ids, oracle["hidden_states"], single(ids), 2)
    predict.square().sum().backward()
    gradient = drafter.layer.mlp.down_proj.weight.grad
    assert gradient is not None
    assert gradient[:d].abs().max() > 0
    assert gradient[d:].abs().max() == 0
