"""How many of a MoA drafter's tokens a target accepts, both of them models that a test has made."""

import torch
from torch import Tensor
from transformers import PreTrainedModel

from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.training.acceptance import Acceptance, accepted_tokens, summarise
from vllm_specext.training.moa.chains import simulate_moa_chains
from vllm_specext.training.moa.target import last_target_layers, target_states


@torch.no_grad()
def measure_moa_acceptance(
    model: MoADrafter, target: PreTrainedModel, rows: Tensor, prompt_length: int, chain: int = 4, batch: int = 16
) -> Acceptance:
    """Acceptance of greedy chains of ``chain`` tokens on ``rows`` ``[N, T]``, after ``prompt_length`` tokens."""
    used = model.shape.target_layer_inference
    last_layers = last_target_layers(target, used) if used else None
    accepted = []
    for part in rows.split(batch):
        seen = target_states(target, part, torch.ones_like(part, dtype=torch.bool), used)
        drafts = simulate_moa_chains(
            model, target.get_input_embeddings().weight, target.lm_head.weight, last_layers, seen, chain
        )
        accepted.append(accepted_tokens(drafts, part))
    return summarise(torch.cat(accepted), prompt_length, chain)
