"""Greedy continuations, and how many drafted tokens a target accepts."""

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from tests.unit.tiny_llama import random_rows, tiny_llama
from vllm_specext.training.acceptance import greedy_continuations
from vllm_specext.training.griffin import acceptance
from vllm_specext.training.griffin.acceptance import measure_acceptance


@pytest.fixture(scope="module")
def target() -> LlamaForCausalLM:
    return tiny_llama(2)


def test_greedy_continuations_are_the_targets_argmax(target: LlamaForCausalLM) -> None:
    rows = greedy_continuations(target, random_rows(3, 5), 8, batch=2)
    assert torch.equal(rows[:, :5], random_rows(3, 5))
    best = target(rows).logits.argmax(dim=-1)
    assert torch.equal(rows[:, 5:], best[:, 4:-1])


@pytest.mark.parametrize(
    ("right", "tokens_per_verification", "rates"),
    [(0, 1.0, (0, 0, 0)), (1, 2.0, (1, 0, 0)), (2, 3.0, (1, 1, 0)), (3, 4.0, (1, 1, 1))],
)
def test_acceptance_counts_the_right_beginning_of_a_chain(
    target: LlamaForCausalLM,
    monkeypatch: pytest.MonkeyPatch,
    right: int,
    tokens_per_verification: float,
    rates: tuple[int, ...],
) -> None:
    rows = random_rows(3, 30)

    def chains(model: object, head: Tensor, token_ids: Tensor, features: Tensor, length: int) -> Tensor:
        """Only entry ``right`` is wrong."""
        truth = torch.nn.functional.pad(token_ids, (0, length)).unfold(1, length + 1, 1)[:, :, 1:].clone()
        if right < length:
            truth[:, :, right] = 99
        return truth

    monkeypatch.setattr(acceptance, "simulate_chains", chains)
    found = measure_acceptance(object(), target, rows, prompt_length=6, chain=3, batch=2)  # type: ignore[arg-type]
    assert found.tokens_per_verification == tokens_per_verification
    assert found.rate_at_depth == rates


def test_decoding_visits_only_positions_where_a_verification_starts(
    target: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    accepted = torch.tensor([[0, 2, 9, 9, 1, 9, 0, 2]])
    monkeypatch.setattr(acceptance, "_accepted", lambda *_: accepted)
    found = measure_acceptance(object(), target, random_rows(1, 12), prompt_length=1)  # type: ignore[arg-type]
    assert found.verifications == 5
    assert found.tokens_per_verification == 1 + (0 + 2 + 1 + 0 + 2) / 5
