"""Tokens that the target accepts of the drafters' greedy chains, prompt by prompt."""

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from vllm_specext.demo.training_text import CHAIN, PROMPT
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.acceptance import Acceptance, accepted_tokens, summarise
from vllm_specext.training.eagle3.model import Eagle3Drafter
from vllm_specext.training.eagle3.passes import simulate_chains
from vllm_specext.training.griffin.acceptance import measure_acceptance


@torch.no_grad()
def counts(
    model: GriffinDrafter | Eagle3Drafter, target: LlamaForCausalLM, rows: Sequence[Tensor]
) -> list[tuple[int, int]]:
    """Of each row ``[T]`` of the target's own text after a prompt of ``PROMPT`` tokens: verifications, and the drafted
    tokens that they accept."""
    found = []
    for row in rows:
        measured = acceptance(model, target, row[None])
        drafted = (measured.tokens_per_verification - 1) * measured.verifications
        found.append((measured.verifications, round(drafted)))
    return found


def acceptance(model: GriffinDrafter | Eagle3Drafter, target: LlamaForCausalLM, rows: Tensor) -> Acceptance:
    """Of chains of ``CHAIN`` tokens in ``rows`` ``[N, T]``."""
    if isinstance(model, GriffinDrafter):
        return measure_acceptance(model, target, rows, PROMPT, CHAIN)
    return summarise(accepted_tokens(eagle3_chains(model, target, rows, CHAIN), rows), PROMPT, CHAIN)


def eagle3_chains(model: Eagle3Drafter, target: LlamaForCausalLM, rows: Tensor, length: int) -> Tensor:
    """The greedy chain of ``length`` tokens that would be drafted after each token but the first of ``rows``
    ``[N, T]``: ``[N, T - 1, length]``, of which entry ``s`` follows token ``s + 1``."""
    states = target.base_model(rows, use_cache=False, output_hidden_states=True).hidden_states
    read = torch.cat([states[n][:, :-1] for n in model.shape.layers], dim=-1).float()
    embedding, head = target.get_input_embeddings().weight, target.lm_head.weight
    return simulate_chains(model, embedding, head, rows[:, 1:], read, length)
