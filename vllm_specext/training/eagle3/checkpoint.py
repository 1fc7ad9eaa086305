"""EAGLE-3 drafters that are trained, on disk, as vLLM's own class reads them.

Of the many layouts of such files those are read whose drafter `Eagle3Drafter` is: one layer of Llama's kind, the
target's vocabulary, and no further norms. `methods/eagle` checks and serves the others too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import (
    DRAFT_VOCABULARY,
    load_tensor,
    positive,
    read_config,
    read_rotary,
    tensor_headers,
    write_files,
)
from vllm_specext.methods.stock.checkpoint import check_checkpoint, weight_files
from vllm_specext.training.eagle3.shape import STATES, Eagle3Shape, Layers, default_layers

LAYERS = "eagle_aux_hidden_state_layer_ids"
OTHERS_LAYER, LAYER = "midlayer.", "layers.0."
"""The layer's name in the layout of SafeAILab and SpecForge, and ours."""
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
"""Tensors that a file may have. The embedding is the target's."""
PLAIN: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "num_hidden_layers": (1,),
    "hidden_act": ("silu", None),
    "logit_scale": (None, 1, 1.0),
    **dict.fromkeys(("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"), (None, False)),
    **dict.fromkeys(("attention_bias", "mlp_bias", "bias"), (None, False)),
    **dict.fromkeys(("eagle_config", "quantization_config", "target_hidden_size"), (None, {})),
}
"""Keys that say that a drafter is another one than ours, with the values that do not."""


def read_shape(directory: Path, target_layers: int) -> Eagle3Shape:
    """The drafter in ``directory``, whose tensors are compared with ``config.json``; ``target_layers`` are the
    target's. Raises ``ConfigurationError``, also for an EAGLE-3 drafter that is another one than ours."""
    config = read_config(directory)
    place = directory / "config.json"
    for key, allowed in PLAIN.items():
        if config.get(key) not in allowed:
            raise ConfigurationError(
                f"{place}: {key} is {config.get(key)!r}; an EAGLE-3 drafter that is trained here has "
                f"{' or '.join(map(repr, allowed))}."
            )
    sizes = {
        key: positive(directory, config, key, int)
        for key in (
            *("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads"),
            "max_position_embeddings",
        )
    }
    if config.get("draft_vocab_size") not in (None, sizes["vocab_size"]):
        raise ConfigurationError(
            f"{place}: draft_vocab_size is {config['draft_vocab_size']!r}; an EAGLE-3 drafter that is trained here "
            f"drafts all tokens of its vocabulary, which has {sizes['vocab_size']}."
        )
    heads = sizes["num_attention_heads"]
    with_head_dim = {"head_dim": config.get("head_dim") or sizes["hidden_size"] // heads}
    shape = Eagle3Shape(
        vocab_size=sizes["vocab_size"],
        hidden_size=sizes["hidden_size"],
        heads=heads,
        kv_heads=sizes["num_key_value_heads"],
        head_dim=positive(directory, with_head_dim, "head_dim", int),
        mlp_size=sizes["intermediate_size"],
        rms_norm_eps=positive(directory, config, "rms_norm_eps", float),
        rope_theta=read_rotary(directory, config, ("default",)).theta,
        max_position_embeddings=sizes["max_position_embeddings"],
        layers=_layers(place, config.get(LAYERS), target_layers),
    )
    if heads % shape.kv_heads or shape.head_dim % 2:
        raise ConfigurationError(
            f"{place}: num_attention_heads is {heads}, num_key_value_heads {shape.kv_heads} and head_dim "
            f"{shape.head_dim}; expected heads that share keys evenly, of an even size."
        )
    check_checkpoint(directory, shape.parameters())
    for file in weight_files(directory):
        if HEAD in tensor_headers(file):
            raise ConfigurationError(
                f"{file}: tensor {HEAD} is an output layer of the drafter's own; an EAGLE-3 drafter that is trained "
                "here has the target's."
            )
    return shape


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors that an `Eagle3Drafter` has, by name, on the CPU and in the file's dtype, after `read_shape`."""
    return {
        name.replace(OTHERS_LAYER, LAYER): load_tensor(file, name)
        for file in weight_files(directory)
        for name in tensor_headers(file)
        if name not in (EMBEDDING, *DRAFT_VOCABULARY)
    }


def write_checkpoint(directory: Path, shape: Eagle3Shape, state_dict: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write a drafter to ``directory`` as ``config.json`` and ``model.safetensors``, weights in ``dtype``."""
    write_files(directory, configuration(shape), state_dict, dtype)


def configuration(shape: Eagle3Shape) -> dict[str, Any]:
    """The ``config.json`` of a drafter, without the type of its weights."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "intermediate_size": shape.mlp_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "tie_word_embeddings": False,
        "hidden_size": shape.hidden_size,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab_size,
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "rope_theta": shape.rope_theta,
        # Named even where they are vLLM's default, which another version may change.
        LAYERS: list(shape.layers),
    }


def _layers(place: Path, found: Any, target_layers: int) -> Layers:
    if found is None:
        return default_layers(target_layers)
    if not isinstance(found, list) or len(found) != STATES or any(type(each) is not int for each in found):
        raise ConfigurationError(f"{place}: {LAYERS} is {found!r}; expected the numbers of {STATES} layers.")
    return tuple(found)
