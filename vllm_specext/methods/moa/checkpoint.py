"""MoA checkpoints on disk: what is in one, whether it is sound, reading it and writing it.

Names and configuration keys are those of the official code. Widths are read from the tensors, never from the
configuration; the configuration adds what shapes cannot tell. A checkpoint has neither embedding nor head, which are
the target's, and without the ``layer_self_attention`` tensors it is one without LSA.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import (
    Shapes,
    check_names,
    check_shapes,
    check_sizes,
    kv_and_head_size,
    load_tensors,
    matrix,
    positive,
    read_config,
    read_rotary,
    tensor_shapes,
    weights_file,
    write_files,
)
from vllm_specext.methods.layers import RopeScaling

ROPE_KINDS = ("default", "linear", "llama3")
SA, CA, LSA = "self_attention", "cross_attention", "layer_self_attention"


@dataclass(frozen=True)
class LayerShape:
    """One of the drafter's Llama layers, or of the target's that run after it."""

    width: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    qkv_bias: bool = False
    qk_norm: bool = False
    """Whether queries and keys are normed: in the target's layers only."""

    def tensor_shapes(self, prefix: str) -> Shapes:
        d, q, kv = self.width, self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: Shapes = {
            "input_layernorm.weight": (d,),
            "self_attn.q_proj.weight": (q, d),
            "self_attn.k_proj.weight": (kv, d),
            "self_attn.v_proj.weight": (kv, d),
            "self_attn.o_proj.weight": (d, q),
            "post_attention_layernorm.weight": (d,),
            "mlp.gate_proj.weight": (self.mlp_size, d),
            "mlp.up_proj.weight": (self.mlp_size, d),
            "mlp.down_proj.weight": (d, self.mlp_size),
        }
        if self.qkv_bias:
            shapes |= {f"self_attn.{x}_proj.bias": (q if x == "q" else kv,) for x in "qkv"}
        return {f"{prefix}.{name}": shape for name, shape in shapes.items()}


@dataclass(frozen=True)
class MoAShape:
    """All that is needed to build a drafter."""

    hidden_size: int
    kv_width: int
    """Keys and values of one token in one of the target's layers: ``2 · Hkv · D``."""
    self_attention: LayerShape
    cross_attention: LayerShape
    layer_self_attention: LayerShape | None
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int
    rope_scaling: RopeScaling | None = None
    """Scaling of SA's positions. LSA's positions are layers, and the official code clears the scaling for CA."""
    target_layer_inference: int = 0
    """The target's last layers that run over the drafter's feature."""
    num_target_layers: int | None = None
    """Layers of the target that it was trained for; no tensor tells. None: the checkpoint does not say."""

    def tensor_shapes(self) -> Shapes:
        shapes = self.self_attention.tensor_shapes(SA) | self.cross_attention.tensor_shapes(CA)
        if self.layer_self_attention is not None:
            shapes |= self.layer_self_attention.tensor_shapes(LSA)
        return shapes | {"Ekv2E.weight": (self.hidden_size, self.kv_width), "Ekv2E.bias": (self.hidden_size,)}


def read_shape(directory: Path) -> MoAShape:
    """Check ``config.json`` and the names and shapes of all tensors in ``directory``."""
    config = read_config(directory)
    path = weights_file(directory)
    found = tensor_shapes(path)
    _check_names(path, found)
    check_sizes(path, found)
    heads = positive(directory, config, "num_attention_heads", int)

    def layer(prefix: str) -> LayerShape:
        attention = f"{prefix}.self_attn"
        kv_heads, head_dim = kv_and_head_size(path, found, attention, heads)
        return LayerShape(
            width=matrix(path, found, f"{attention}.q_proj.weight")[1],
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            mlp_size=matrix(path, found, f"{prefix}.mlp.gate_proj.weight")[0],
            qkv_bias=f"{attention}.q_proj.bias" in found,
        )

    hidden_size, kv_width = matrix(path, found, "Ekv2E.weight")
    rotary = read_rotary(directory, config, ROPE_KINDS)
    shape = MoAShape(
        hidden_size=hidden_size,
        kv_width=kv_width,
        self_attention=layer(SA),
        cross_attention=layer(CA),
        layer_self_attention=layer(LSA) if _has_lsa(found) else None,
        vocab_size=positive(directory, config, "vocab_size", int),
        rms_norm_eps=positive(directory, config, "rms_norm_eps", float),
        rope_theta=rotary.theta,
        rope_scaling=rotary.scaling,
        max_position_embeddings=positive(directory, config, "max_position_embeddings", int),
        target_layer_inference=_target_layer_inference(directory, config),
        num_target_layers=(
            positive(directory, config, "num_target_layers", int) if "num_target_layers" in config else None
        ),
    )
    # Each layer's width was taken from its own tensors; together they must fit.
    widths = {SA: hidden_size, CA: hidden_size, LSA: kv_width}
    wanted: Shapes = {}
    for name, part in ((SA, shape.self_attention), (CA, shape.cross_attention), (LSA, shape.layer_self_attention)):
        if part is not None:
            wanted |= replace(part, width=widths[name]).tensor_shapes(name)
    check_shapes(path, found, wanted | {"Ekv2E.bias": (hidden_size,)})
    return shape


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors that a `MoADrafter` has, by name, on the CPU and in the file's dtype."""
    path = weights_file(directory)
    tensors = load_tensors(path)
    _check_names(path, tensors)
    return tensors


def write_checkpoint(directory: Path, shape: MoAShape, state_dict: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write a drafter to ``directory`` as ``config.json`` and ``model.safetensors``, weights in ``dtype``."""
    config: dict[str, Any] = {
        "architectures": ["MOASpecModel"],
        "model_type": "moa_spec",
        "hidden_size": shape.hidden_size,
        "kv_hidden_size": shape.kv_width,
        "num_attention_heads": shape.self_attention.heads,
        "disable_LSA": shape.layer_self_attention is None,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None if shape.rope_scaling is None else shape.rope_scaling.as_config(),
        "max_position_embeddings": shape.max_position_embeddings,
        "vocab_size": shape.vocab_size,
        "target_layer_inference": shape.target_layer_inference,
    }
    for name, part in ((SA, shape.self_attention), (CA, shape.cross_attention), (LSA, shape.layer_self_attention)):
        if part is not None:
            config[f"{name}_num_key_value_heads"] = part.kv_heads
            config[f"{name}_intermediate_size"] = part.mlp_size
    if shape.num_target_layers is not None:
        config["num_target_layers"] = shape.num_target_layers
    write_files(directory, config, state_dict, dtype)


@dataclass(frozen=True)
class TargetSizes:
    """What a drafter and its target have to agree on."""

    hidden_size: int
    vocab_size: int
    layers: int
    kv_width: int
    """Keys and values of one token in one layer: ``2 · Hkv · D``."""


def check_against_target(shape: MoAShape, target: TargetSizes) -> None:
    """Refuse a drafter that was trained for another target."""
    pairs = (
        ("hidden size", shape.hidden_size, target.hidden_size),
        ("vocabulary", shape.vocab_size, target.vocab_size),
        ("key/value width (Ekv2E.weight)", shape.kv_width, target.kv_width),
        ("number of target layers", shape.num_target_layers, target.layers),
    )
    for noun, drafter, wanted in pairs:
        if drafter not in (None, wanted):
            raise ConfigurationError(
                f"The MoA drafter was trained for a target whose {noun} is {drafter}, but this target's is {wanted}; "
                "they must be equal."
            )
    if shape.target_layer_inference > target.layers:
        raise ConfigurationError(
            f"The MoA drafter has target_layer_inference = {shape.target_layer_inference}, but the target has only "
            f"{target.layers} layers."
        )


def _has_lsa(found: Iterable[str]) -> bool:
    return any(name.startswith(f"{LSA}.") for name in found)


def _check_names(path: Path, found: Iterable[str]) -> None:
    """The tensors of an LSA and the biases of SA and LSA are there as a whole or not at all."""
    found = list(found)
    lsa = _has_lsa(found)
    bias = any(name.endswith("_proj.bias") for name in found)
    with_bias, plain = LayerShape(1, 1, 1, 1, 1, bias), LayerShape(1, 1, 1, 1, 1)
    shape = MoAShape(1, 1, with_bias, plain, with_bias if lsa else None, 1, 1.0, 1.0, 1)
    check_names(path, "MoA", found, shape.tensor_shapes())


def _target_layer_inference(directory: Path, config: dict[str, Any]) -> int:
    """Checkpoints of the official code do not have the key, and are for zero."""
    value = config.get("target_layer_inference", 0)
    if type(value) is not int or value < 0:
        raise ConfigurationError(
            f"{directory / 'config.json'}: target_layer_inference is {value!r}; expected an integer of at least 0."
        )
    return value
