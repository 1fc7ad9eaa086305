"""The sizes of a new drafter's layer."""

from typing import NamedTuple

from vllm_specext.training.pipeline.target import TargetModel

HEAD_DIM, KV_HEADS = 128, 8
"""Of a drafter for a target with latent attention (MLA), whose own heads keep no keys and values."""


class LayerSizes(NamedTuple):
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int


def layer_sizes(target: TargetModel, mlp_size: int | None) -> LayerSizes:
    """Those of the target's layers, with another ``mlp_size`` where the recipe has one. For a target with latent
    attention (MLA) as many heads of ``HEAD_DIM`` as make its hidden size, and ``KV_HEADS`` of keys and values, or
    fewer where the former are no multiple of them."""
    width = mlp_size or target.intermediate_size
    if target.config.get("kv_lora_rank") is None:
        return LayerSizes(target.heads, target.kv_heads, target.head_dim, width)
    heads = max(1, target.hidden_size // HEAD_DIM)
    kv_heads = next(count for count in range(KV_HEADS, 0, -1) if heads % count == 0)
    return LayerSizes(heads, kv_heads, HEAD_DIM, width)
