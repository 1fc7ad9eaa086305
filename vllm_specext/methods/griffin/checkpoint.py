"""GRIFFIN checkpoints on disk: what is in one, whether it is sound, reading it and writing it.

A checkpoint is a folder with ``config.json`` and ``model.safetensors`` or, as released, ``pytorch_model.bin``. Widths
are read from the tensors, because released configurations do not always agree with them; the configuration adds only
what shapes cannot tell. `read_shape` looks at names and shapes without reading the weights. Whatever is wrong with the
files becomes a `ConfigurationError` that names the file and the tensor or key; nothing in a file is ever executed.

Checkpoints of EAGLE-1, EAGLE-2 and HASS are read too, as the GRIFFIN drafter that drafts the same (`from_eagle`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import (
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
from vllm_specext.methods.griffin.from_eagle import TGF_SIZE, as_griffin, in_eagle, is_eagle

DEFAULT_ROPE_THETA = 10000.0
"""Released configurations of LLaMA2 and Vicuna drafters leave the key out."""

EMBEDDING = "embed_tokens.weight"
_ATTENTION = "layers.0.self_attn"


@dataclass(frozen=True)
class GriffinShape:
    """All that is needed to build a drafter."""

    vocab_size: int
    hidden_size: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_size: int
    tgf_size: int
    """Width of the expansion in the token-guided fusion; equal to ``mlp_size`` in all released checkpoints."""
    qkv_bias: bool
    rms_norm_eps: float
    rope_theta: float
    max_position_embeddings: int

    def tensor_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names in a checkpoint, in the order in which they are checked, with their shapes."""
        d, q, kv = self.hidden_size, self.heads * self.head_dim, self.kv_heads * self.head_dim
        shapes: dict[str, tuple[int, ...]] = {
            EMBEDDING: (self.vocab_size, d),
            "fc.fc.weight": (d, 2 * d),
            "fc.fc.bias": (d,),
            "fc.post_attention_layernorm.weight": (d,),
            "fc.mlp.input_layernorm.weight": (d,),
            "fc.mlp.up_proj.weight": (self.tgf_size, 2 * d),
            "fc.mlp.down_proj.weight": (d, self.tgf_size),
            f"{_ATTENTION}.q_proj.weight": (q, d),
            f"{_ATTENTION}.k_proj.weight": (kv, d),
            f"{_ATTENTION}.v_proj.weight": (kv, d),
            f"{_ATTENTION}.o_proj.weight": (d, q),
            "layers.0.post_attention_layernorm.weight": (d,),
            "layers.0.mlp.gate_proj.weight": (self.mlp_size, d),
            "layers.0.mlp.up_proj.weight": (self.mlp_size, d),
            "layers.0.mlp.down_proj.weight": (2 * d, self.mlp_size),
        }
        if self.qkv_bias:
            shapes |= {f"{_ATTENTION}.{x}_proj.bias": (q if x == "q" else kv,) for x in "qkv"}
        return shapes


_BIASES = tuple(f"{_ATTENTION}.{x}_proj.bias" for x in "qkv")
_SHAPES = GriffinShape(1, 1, 1, 1, 1, 1, 1, False, 0.0, 0.0, 1).tensor_shapes()


def read_shape(directory: Path) -> GriffinShape:
    """Check ``config.json`` and the names and shapes of all tensors in ``directory``."""
    config = _read_config(directory)
    path = weights_file(directory)
    found = tensor_shapes(path)
    _check_names(path, found)
    check_sizes(path, found)

    def rows(name: str) -> int:
        return matrix(path, found, name)[0]

    vocab_size, hidden_size = matrix(path, found, EMBEDDING)
    heads = positive(directory, config, "num_attention_heads", int)
    kv_heads, head_dim = kv_and_head_size(path, found, _ATTENTION, heads)
    shape = GriffinShape(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        mlp_size=rows("layers.0.mlp.gate_proj.weight"),
        tgf_size=TGF_SIZE if is_eagle(found) else rows("fc.mlp.up_proj.weight"),
        qkv_bias=_BIASES[0] in found,
        rms_norm_eps=positive(directory, config, "rms_norm_eps", float),
        rope_theta=read_rotary(directory, config, ("default",), DEFAULT_ROPE_THETA).theta,
        max_position_embeddings=positive(directory, config, "max_position_embeddings", int),
    )
    check_shapes(path, found, in_eagle(shape.tensor_shapes(), found) if is_eagle(found) else shape.tensor_shapes())
    return shape


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors that a `GriffinDrafter` has, by name, on the CPU and in the file's dtype."""
    path = weights_file(directory)
    tensors = load_tensors(path)
    _check_names(path, tensors)
    return dict(as_griffin(tensors.items(), tensors[EMBEDDING].shape[-1]))


def write_checkpoint(
    directory: Path, shape: GriffinShape, state_dict: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    """Write a drafter to ``directory`` as ``config.json`` and ``model.safetensors``, weights in ``dtype``."""
    write_files(directory, configuration(shape), state_dict, dtype)


def configuration(shape: GriffinShape) -> dict[str, Any]:
    """The ``config.json`` of a drafter, without the type of its weights."""
    return {
        "architectures": ["GriffinForCausalLM"],
        "model_type": "llama",
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None,
        "max_position_embeddings": shape.max_position_embeddings,
        "vocab_size": shape.vocab_size,
        "pretraining_tp": 1,
        "qkv_bias": shape.qkv_bias,
    }


def check_against_target(shape: GriffinShape, target_hidden_size: int, target_vocab_size: int) -> None:
    """Refuse a drafter that was trained for another target."""
    if shape.hidden_size != target_hidden_size:
        raise ConfigurationError(
            f"The GRIFFIN drafter has hidden size {shape.hidden_size} but the target's is {target_hidden_size}; "
            "they must be equal."
        )
    if shape.vocab_size != target_vocab_size:
        raise ConfigurationError(
            f"The GRIFFIN drafter has {shape.vocab_size} tokens in its vocabulary but the target has "
            f"{target_vocab_size}; they must be equal."
        )


def _check_names(path: Path, found: Iterable[str]) -> None:
    found = list(found)
    required, kind = (
        (in_eagle(_SHAPES, found), "loadable EAGLE-1, EAGLE-2 or HASS") if is_eagle(found) else (_SHAPES, "GRIFFIN")
    )
    biases = _BIASES if any(name in found for name in _BIASES) else ()
    check_names(path, kind, found, (*required, *biases))


def _read_config(directory: Path) -> dict[str, Any]:
    config = read_config(directory)
    for key, allowed in (("num_hidden_layers", (1, None)), ("hidden_act", ("silu", None))):
        if config.get(key) not in allowed:
            raise ConfigurationError(
                f"{directory / 'config.json'}: {key} is {config[key]!r}; a GRIFFIN drafter has {allowed[0]!r}."
            )
    return config
