"""A small target with recurrent layers, as Qwen3-Next has them, and a drafter that knows all of it but these.

Both have random weights. The target's attention layers are the drafter's; what its recurrent layers add is as much as
makes the drafter wrong about every third token, and would change as many tokens if it were wrong.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tests.engine.workload import copy_tokenizer

KEYS: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 256,  # as the bundled drafters have it
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "eos_token_id": [0, 3],
    "bos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,  # vLLM ties none of Qwen3-Next's
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 1.0},
}
RECURRENT = {
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 48,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    # vLLM wants one layer with experts.
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
}
PERIOD, ATTENTION = 3, 4
"""Every third layer is attention; so many are."""

SHARPNESS = 10
"""What makes random scores so far apart that sampled tokens are mostly likely ones."""


def make_hybrid(folder: Path, share: float = 0.009) -> tuple[Path, Path]:
    """Folders of a target and of a drafter for it. ``share``: how much the recurrent layers add."""
    torch.manual_seed(0)
    drafter = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**KEYS, num_hidden_layers=ATTENTION))
    kinds = (["linear_attention"] * (PERIOD - 1) + ["full_attention"]) * ATTENTION
    with_experts = 1
    dense = [layer for layer in range(len(kinds)) if layer != with_experts]
    config = transformers.Qwen3NextConfig(
        **KEYS, **RECURRENT, num_hidden_layers=len(kinds), layer_types=kinds, mlp_only_layers=dense
    )
    target = transformers.Qwen3NextForCausalLM(config)
    with torch.no_grad():
        for model in (drafter, target):
            for name, weight in model.named_parameters():
                if weight.ndim > 1:
                    weight.normal_(0, 0.5 if "conv1d" in name else 0.08)
        for place, layer in enumerate(target.model.layers):
            if kinds[place] == "linear_attention":
                layer.linear_attn.out_proj.weight.mul_(share)
                layer.linear_attn.A_log.uniform_(-3, 0)
                layer.linear_attn.dt_bias.normal_()
                for name, weight in layer.mlp.named_parameters():
                    if "down_proj" in name:
                        weight.mul_(share)
            else:
                _copy(drafter.model.layers[place // PERIOD], layer)
        target.model.embed_tokens.weight.copy_(drafter.model.embed_tokens.weight)
        drafter.lm_head.weight.mul_(SHARPNESS)
        target.lm_head.weight.copy_(drafter.lm_head.weight)
    paths = folder / "target", folder / "drafter"
    for model, path in zip((target, drafter), paths, strict=True):
        path.mkdir(parents=True, exist_ok=True)
        copy_tokenizer(path)
        model.float().save_pretrained(path)
    return paths


def _copy(own: Any, into: nn.Module) -> None:
    """Have the attention layer ``into`` of Qwen3-Next compute what ``own`` of Qwen3 does: its gates are one half, and
    its norms multiply by one more than their weight."""
    theirs: dict[str, torch.Tensor] = dict(into.named_parameters())
    for name, weight in own.named_parameters():
        if name.endswith("q_proj.weight"):
            heads = weight.unflatten(0, (KEYS["num_attention_heads"], -1))
            weight = torch.cat((heads, torch.zeros_like(heads)), dim=1).flatten(0, 1)
        elif name.endswith("o_proj.weight"):
            weight = 2 * weight
        elif "norm" in name:
            weight = weight - 1
        theirs[name].copy_(weight)
