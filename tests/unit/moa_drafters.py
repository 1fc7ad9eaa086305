"""MoA drafters for small targets."""

from typing import Any

import torch
from transformers import LlamaForCausalLM

from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.training.moa.untrained import new_moa_drafter


def untrained(target: LlamaForCausalLM, **changes: Any) -> MoADrafter:
    return new_moa_drafter(target, **{"mlp_size": 40, "kv_heads": 2, "lsa_mlp_size": 16, "lsa_kv_heads": 2, **changes})


def random_drafter(target: LlamaForCausalLM, **changes: Any) -> MoADrafter:
    """With weights large enough that what is drafted depends on everything."""
    model = untrained(target, **changes)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.3, generator=generator)
    return model
