"""What MoA's training takes from the frozen target: keys and values of all layers, and the features to imitate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vllm_specext.architectures import LLAMA_LIKE
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import read_rope_scaling
from vllm_specext.methods.layers import KV, Rotary
from vllm_specext.methods.moa.checkpoint import ROPE_KINDS, LayerShape
from vllm_specext.methods.moa.target_layers import TargetLayers
from vllm_specext.training.features import RandomOrder, pad
from vllm_specext.training.step import Share

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class TargetStates:
    """Text as the target sees it, padded on the right.

    ``embeddings`` ``[B, T, E]`` float32; ``kv`` ``[B, T, L, W]`` in the order of `vllm_specext.methods.moa.model`;
    ``entry`` ``[B, T, E]``, the residual stream that enters the last ``N`` layers, and ``last_kvs``, the keys and
    values of those; ``features`` ``[B, T, E]``, the input of ``lm_head``; ``response`` ``[B, T]`` bool, where the
    drafter shall learn. Without target-layer inference ``entry`` is ``features``.
    """

    embeddings: Tensor
    kv: Tensor
    entry: Tensor
    features: Tensor
    last_kvs: list[KV]
    response: Tensor


@torch.no_grad()
def target_states(target: "PreTrainedModel", token_ids: Tensor, response: Tensor, last_layers: int) -> TargetStates:
    """Run ``target``, a causal language model of transformers, over ``token_ids`` ``[B, T]``."""
    # Causal attention: what is padded on the right cannot reach a real position.
    output = target.base_model(token_ids, use_cache=True, output_hidden_states=last_layers > 0)
    kvs = [(layer.keys, layer.values) for layer in output.past_key_values.layers]
    features = output.last_hidden_state
    return TargetStates(
        embeddings=target.get_input_embeddings()(token_ids).float(),  # what is added up is float32
        kv=torch.stack([side_by_side(kv) for kv in kvs], dim=2),
        entry=output.hidden_states[-1 - last_layers] if last_layers else features,
        features=features,
        last_kvs=kvs[len(kvs) - last_layers :],
        response=response,
    )


def side_by_side(kv: KV) -> Tensor:
    """One layer's keys and values ``[B, Hkv, T, D]`` -> ``[B, T, 2 · Hkv · D]``: ``[k_0 | v_0 | k_1 | v_1 | ...]``."""
    return torch.cat(kv, dim=-1).transpose(1, 2).flatten(2)


class TargetStateReader:
    """``size`` random rows of token ids at a time as the target sees them, all ``rows`` once before any comes again.

    The drafter learns where a row's mask in ``learnt`` ``[length]`` is true, and everywhere without.

    Every batch is as long as the longest row.
    """

    def __init__(
        self,
        target: "PreTrainedModel",
        rows: Sequence[Tensor],
        size: int,
        seed: int,
        last_layers: int = 0,
        *,
        learnt: Sequence[Tensor] | None = None,
        bfloat16: bool = False,
    ) -> None:
        self.target, self.rows = target, rows
        self.learnt = [torch.ones_like(row) for row in rows] if learnt is None else learnt
        self.last_layers, self.bfloat16 = last_layers, bfloat16
        self.longest = max(len(row) for row in rows)
        self.order = RandomOrder(len(rows), size, seed)

    def take(self, share: Share | None = None) -> TargetStates:
        """The next rows, or one process's ``share`` of them."""
        device = self.target.lm_head.weight.device
        chosen = (share or Share()).of(self.order.take())
        longest = torch.zeros(self.longest)
        token_ids, learnt = (
            pad([*(rows[i] for i in chosen), longest])[:-1].to(device) for rows in (self.rows, self.learnt)
        )
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bfloat16):
            return target_states(self.target, token_ids, learnt.bool(), self.last_layers)

    def state_dict(self) -> dict[str, Any]:
        return self.order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state)


def last_target_layers(target: "PreTrainedModel", count: int) -> TargetLayers:
    """The target's last ``count`` layers and its final norm, frozen; the weights are shared.

    Raises ``ConfigurationError`` for a target whose layers are none of those that can be run one by one.
    """
    config = target.config
    architecture = type(target).__name__
    if architecture not in LLAMA_LIKE:
        raise ConfigurationError(
            f"target_layer_inference is {count}, but the last layers of a {architecture} cannot be trained with; those "
            f"of {', '.join(LLAMA_LIKE)} can, and target_layer_inference 0 works with others."
        )
    if not 1 <= count <= config.num_hidden_layers:
        raise ConfigurationError(
            f"target_layer_inference is {count}, but the target has {config.num_hidden_layers} layers; expected at "
            "most as many."
        )
    layers = target.base_model.layers[-count:]
    shapes = [target_layer_shape(target)] * count
    with torch.device("meta"):
        copy = TargetLayers(shapes, config.rms_norm_eps, target_rotary(config))
    weights = {f"norm.{name}": x for name, x in target.base_model.norm.state_dict().items()}
    weights |= {f"layers.{name}": x for name, x in layers.state_dict().items()}
    if unknown := sorted(weights.keys() ^ copy.state_dict().keys()):
        raise ConfigurationError(
            f"target_layer_inference is {count}, but the target's layers differ in the tensor {unknown[0]} from those "
            f"that are known of a {architecture}; target_layer_inference 0 works with others."
        )
    copy.load_state_dict(weights, assign=True)
    return copy.requires_grad_(False)


def target_layer_shape(target: "PreTrainedModel") -> LayerShape:
    config = target.config
    attention = target.base_model.layers[0].self_attn
    return LayerShape(
        width=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=attention.head_dim,
        mlp_size=config.intermediate_size,
        qkv_bias=attention.q_proj.bias is not None,
        qk_norm=hasattr(attention, "q_norm"),
    )


def target_rotary(config: Any) -> Rotary:
    """Rotary positions of a target of transformers 5."""
    rope = config.rope_parameters
    return Rotary(float(rope["rope_theta"]), read_rope_scaling("rope_parameters of the target", rope, ROPE_KINDS))
