"""EAGLE-3 drafters that are trained, on disk, as vLLM's own class reads them.

Of the many layouts of such files those are read whose drafter `Eagle3Drafter` is: one layer of Llama's kind, and no
further norms. That is what SafeAILab, SpecForge and others have released, with an output layer of the drafter's own for
32,000 tokens. `methods/eagle` checks and serves the others too.
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
from vllm_specext.methods.eagle.layer_ids import as_inputs
from vllm_specext.methods.stock.checkpoint import check_checkpoint, weight_files
from vllm_specext.training.eagle3.shape import STATES, Eagle3Shape, Layers, default_layers

LAYERS = "eagle_aux_hidden_state_layer_ids"
NESTED, USES_STATES = "eagle_config", "use_aux_hidden_state"
OTHERS_LAYER, LAYER = "midlayer.", "layers.0."
"""The layer's name in the layout of SafeAILab and SpecForge, and ours."""
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
"""Tensors that a file may have. The embedding is the target's, and not read."""
D2T, T2D = DRAFT_VOCABULARY
PLAIN: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "num_hidden_layers": (1,),
    "hidden_act": ("silu", None),
    "logit_scale": (None, 1, 1.0),
    **dict.fromkeys(("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"), (None, False)),
    **dict.fromkeys(("attention_bias", "mlp_bias", "bias"), (None, False)),
    **dict.fromkeys(("quantization_config", "target_hidden_size"), (None, {})),
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
    given = config.get("draft_vocab_size")
    scores = positive(
        directory, {"draft_vocab_size": sizes["vocab_size"] if given is None else given}, "draft_vocab_size", int
    )
    if scores > sizes["vocab_size"]:
        raise ConfigurationError(
            f"{place}: draft_vocab_size is {scores}, but vocab_size is {sizes['vocab_size']}; expected no more."
        )
    has_own_head = any(HEAD in tensor_headers(file) for file in weight_files(directory))
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
        layers=_layers(place, config, target_layers),
        draft_vocab_size=scores if has_own_head or scores < sizes["vocab_size"] else None,
    )
    if heads % shape.kv_heads or shape.head_dim % 2:
        raise ConfigurationError(
            f"{place}: num_attention_heads is {heads}, num_key_value_heads {shape.kv_heads} and head_dim "
            f"{shape.head_dim}; expected heads that share keys evenly, of an even size."
        )
    check_checkpoint(directory, shape.parameters())
    return shape


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors that an `Eagle3Drafter` has, by name, on the CPU and in the file's dtype, after `read_shape`."""
    return {
        name.replace(OTHERS_LAYER, LAYER): load_tensor(file, name)
        for file in weight_files(directory)
        for name in tensor_headers(file)
        if name not in (EMBEDDING, T2D)
    }


def write_checkpoint(directory: Path, shape: Eagle3Shape, state_dict: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write a drafter to ``directory`` as ``config.json`` and ``model.safetensors``, weights in ``dtype``."""
    tensors = dict(state_dict)
    if shape.has_own_vocabulary:
        tensors[T2D] = _is_scored(state_dict[D2T], shape.vocab_size)  # other trainings read it
    write_files(directory, configuration(shape), tensors, dtype)


def _is_scored(offsets: Tensor, vocab_size: int) -> Tensor:
    """Of each of the target's tokens, ``[V]``, by what is added to the numbers of the drafter's, ``[V']``."""
    scored = torch.zeros(vocab_size, dtype=torch.bool)
    scored[torch.arange(len(offsets)) + offsets.cpu()] = True
    return scored


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
        **({"draft_vocab_size": shape.draft_vocab_size} if shape.has_own_vocabulary else {}),
        "max_position_embeddings": shape.max_position_embeddings,
        "rms_norm_eps": shape.rms_norm_eps,
        "hidden_act": "silu",
        "rope_theta": shape.rope_theta,
        # Named even where they are vLLM's default, which another version may change.
        LAYERS: list(shape.layers),
    }


def _layers(place: Path, config: Mapping[str, Any], target_layers: int) -> Layers:
    nested = config.get(NESTED) or {}
    is_plain = isinstance(nested, dict) and nested.get(USES_STATES, True) is True
    if not is_plain or any(value for key, value in nested.items() if key not in (LAYERS, USES_STATES)):
        raise ConfigurationError(
            f"{place}: {NESTED} is {nested!r}; an EAGLE-3 drafter that is trained here has there {LAYERS}, "
            f"{USES_STATES} = true, and nothing else."
        )
    at_top, found = config.get(LAYERS), nested.get(LAYERS)
    if at_top is None and found is None:
        return default_layers(target_layers)
    ids = found if at_top is None else at_top
    if not isinstance(ids, list) or len(ids) != STATES or any(type(each) is not int for each in ids):
        raise ConfigurationError(f"{place}: {LAYERS} is {ids!r}; expected the numbers of {STATES} layers.")
    return tuple(as_inputs(ids) if at_top is None else ids)
