"""A small target with recurrent layers, as Qwen3-Next and Qwen3.5 have them, and a drafter that knows all but these.

Both have random weights. The target's attention layers are the drafter's; what its recurrent layers add is as much as
makes the drafter wrong about every third token, and would change as many tokens if it were wrong.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn

from tests.engine.conftest import of_method
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
}
PERIOD, ATTENTION = 3, 4
"""Every third layer is attention; so many are."""
KINDS = (["linear_attention"] * (PERIOD - 1) + ["full_attention"]) * ATTENTION
LAYERS = {"num_hidden_layers": len(KINDS), "layer_types": KINDS}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "shared_expert_intermediate_size": 64,
    # vLLM wants one layer with experts, and that of a module is numbered as the first.
    "mlp_only_layers": list(range(1, len(KINDS))),
}
EYES = {
    "depth": 1,
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_heads": 2,
    "out_hidden_size": KEYS["hidden_size"],
    "num_position_embeddings": 64,
}
AXES = {"mrope_section": [12, 10, 10], "mrope_interleaved": True}
PLACEHOLDERS = {
    "vision_start_token_id": 2044,
    "vision_end_token_id": 2045,
    "image_token_id": 2046,
    "video_token_id": 2047,
}

NODES, LEVELS = 24, 5
"""Of draft trees."""
SHARPNESS = 10
"""What makes random scores so far apart that sampled tokens are mostly likely ones."""


def make_hybrid(folder: Path, share: float = 0.009, sees: bool = False, **recurrent: int) -> tuple[Path, Path]:
    """Folders of a target and of a drafter for it. ``share``: how much the recurrent layers add; ``recurrent``: other
    sizes than theirs. The target is a Qwen3-Next, or a Qwen3.5 that ``sees``, whose eyes stay shut here."""
    torch.manual_seed(0)
    drafter = transformers.Qwen3ForCausalLM(transformers.Qwen3Config(**KEYS, num_hidden_layers=ATTENTION))
    text = KEYS | RECURRENT | recurrent | LAYERS
    target = _qwen3_5(text) if sees else _qwen3_next(text)
    body = target.model.language_model if sees else target.model
    with torch.no_grad():
        for model in (drafter, target):
            for name, weight in model.named_parameters():
                if weight.ndim > 1:
                    weight.normal_(0, 0.5 if "conv1d" in name else 0.08)
        for place, layer in enumerate(body.layers):
            if KINDS[place] == "linear_attention":
                layer.linear_attn.out_proj.weight.mul_(share)
                layer.linear_attn.A_log.uniform_(-3, 0)
                layer.linear_attn.dt_bias.normal_()
                for name, weight in layer.mlp.named_parameters():
                    if "down_proj" in name:
                        weight.mul_(share)
            else:
                _copy(drafter.model.layers[place // PERIOD], layer)
        body.embed_tokens.weight.copy_(drafter.model.embed_tokens.weight)
        drafter.lm_head.weight.mul_(SHARPNESS)
        target.lm_head.weight.copy_(drafter.lm_head.weight)
    paths = folder / "target", folder / "drafter"
    for model, path in zip((target, drafter), paths, strict=True):
        path.mkdir(parents=True, exist_ok=True)
        copy_tokenizer(path)
        model.float().save_pretrained(path)
    return paths


def one_layer(target: Path) -> Any:
    """The configuration of a hybrid ``target`` with a single layer, which is attention."""
    config = transformers.AutoConfig.from_pretrained(target).get_text_config()
    own = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "mlp_only_layers": []}
    return type(config).from_dict(config.to_dict() | own)


def hybrid_tree(models: tuple[Path, Path], nodes: int = NODES, top_k: int = 4, **own: Any) -> dict[str, Any]:
    """Draft trees of ``make_hybrid``'s drafter for its target."""
    target, drafter = models
    return of_method("draft-model-tree", drafter, nodes, top_k, tree_depth=LEVELS, **own) | {"model": str(target)}


def _qwen3_next(text: dict[str, Any]) -> Any:
    return transformers.Qwen3NextForCausalLM(transformers.Qwen3NextConfig(**text, **EXPERTS))


def _qwen3_5(text: dict[str, Any]) -> Any:
    own = text | {"mtp_num_hidden_layers": 1, "rope_parameters": text["rope_parameters"] | AXES}
    config = transformers.Qwen3_5Config(text_config=own, vision_config=EYES, **PLACEHOLDERS)
    return transformers.Qwen3_5ForConditionalGeneration(config)


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
