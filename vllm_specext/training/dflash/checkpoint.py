"""DFlash drafters that are trained, on disk, in the layout of the released checkpoints.

Of the many layouts of such files those are read whose drafter is one that is trained here: full attention in all
layers, the target's vocabulary, and no scales. `methods/block` checks and serves the others too.
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
from vllm_specext.training.dflash.shape import DFlashShape

ARCHITECTURE, SECTION = "DFlashDraftModel", "dflash_config"
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
"""Tensors that a file may have, which are the target's."""
PLAIN: dict[str, tuple[Any, ...]] = {
    "architectures": ([ARCHITECTURE],),
    "model_type": ("qwen3",),
    "hidden_act": ("silu", None),
    "attention_bias": (False, None),
    "use_sliding_window": (False, None),
    "draft_vocab_size": (None,),
    "target_hidden_size": (None,),
    "quantization_config": (None,),
    "use_aux_hidden_state": (True, None),
    **dict.fromkeys(("sample_from_anchor", "is_causal", "causal", "add_swa_attention_sink_bias"), (False, None)),
    **dict.fromkeys(("attention_sink_bias", "final_logit_softcapping"), (False, None)),
    **dict.fromkeys(("input_embedding_scale", "output_multiplier", "logit_scale"), (1, 1.0, None)),
}
"""Keys, at the top or in the section, that say that a drafter is another one than ours, with the values that do not."""
OWN = ("mask_token_id", "target_layer_ids")
"""The keys of the section."""


def read_shape(directory: Path) -> DFlashShape:
    """The drafter in ``directory``, whose tensors are compared with ``config.json``.

    Raises ``ConfigurationError``, also for a DFlash drafter that is another one than ours.
    """
    config, place = read_config(directory), directory / "config.json"
    section = config.get(SECTION)
    if not isinstance(section, dict) or not set(OWN) <= section.keys():
        raise ConfigurationError(f"{place}: {SECTION} is {section!r}; expected an object with {' and '.join(OWN)}.")
    for key, allowed in PLAIN.items():
        name, found = (f"{SECTION}.{key}", section[key]) if key in section else (key, config.get(key))
        if found not in allowed:
            raise ConfigurationError(
                f"{place}: {name} is {found!r}; a DFlash drafter that is trained here has "
                f"{' or '.join(map(repr, allowed))}."
            )
    if set(config.get("layer_types") or []) - {"full_attention"}:
        raise ConfigurationError(
            f"{place}: layer_types is {config['layer_types']!r}; a DFlash drafter that is trained here has full "
            "attention alone."
        )
    keys = {
        "vocab_size": "vocab_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "layers",
        "num_attention_heads": "heads",
        "num_key_value_heads": "kv_heads",
        "head_dim": "head_dim",
        "intermediate_size": "mlp_size",
        "max_position_embeddings": "max_position_embeddings",
        "num_target_layers": "target_layers",
        "block_size": "block",
    }
    sizes = {name: positive(directory, config, key, int) for key, name in keys.items()}
    shape = DFlashShape(
        **sizes,
        rms_norm_eps=positive(directory, config, "rms_norm_eps", float),
        rope_theta=read_rotary(directory, config, ("default",)).theta,
        reads=_reads(place, section["target_layer_ids"], sizes["target_layers"]),
        mask=_mask(place, section["mask_token_id"], sizes["vocab_size"]),
    )
    if shape.heads % shape.kv_heads or shape.head_dim % 2:
        raise ConfigurationError(
            f"{place}: num_attention_heads is {shape.heads}, num_key_value_heads {shape.kv_heads} and head_dim "
            f"{shape.head_dim}; expected heads that share keys evenly, of an even size."
        )
    check_checkpoint(directory, shape.parameters())
    return shape


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors that a drafter of ours has, by name, on the CPU and in the file's dtype, after `read_shape`."""
    return {
        name: load_tensor(file, name)
        for file in weight_files(directory)
        for name in tensor_headers(file)
        if name not in (EMBEDDING, HEAD, *DRAFT_VOCABULARY)
    }


def write_checkpoint(directory: Path, shape: DFlashShape, state_dict: Mapping[str, Tensor], dtype: torch.dtype) -> None:
    """Write a drafter to ``directory`` as ``config.json`` and ``model.safetensors``, weights in ``dtype``."""
    write_files(directory, configuration(shape), state_dict, dtype)


def configuration(shape: DFlashShape) -> dict[str, Any]:
    """The ``config.json`` of a drafter, without the type of its weights."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "qwen3",
        "num_hidden_layers": shape.layers,
        "num_target_layers": shape.target_layers,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.mlp_size,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "attention_bias": False,
        "hidden_act": "silu",
        "rms_norm_eps": shape.rms_norm_eps,
        "rope_theta": shape.rope_theta,
        "max_position_embeddings": shape.max_position_embeddings,
        "vocab_size": shape.vocab_size,
        "tie_word_embeddings": False,
        "block_size": shape.block,
        SECTION: {"mask_token_id": shape.mask, "target_layer_ids": [layer - 1 for layer in shape.reads]},
    }


def _reads(place: Path, ids: Any, count: int) -> tuple[int, ...]:
    if not isinstance(ids, list) or not ids or any(type(id) is not int for id in ids):
        raise ConfigurationError(f"{place}: {SECTION}.target_layer_ids is {ids!r}; expected a list of integers.")
    if ids != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= count:
        raise ConfigurationError(
            f"{place}: {SECTION}.target_layer_ids is {ids}; expected ascending numbers of the target's layers, 0 to "
            f"{count - 1}."
        )
    return tuple(id + 1 for id in ids)


def _mask(place: Path, found: Any, vocab_size: int) -> int:
    if type(found) is not int or not 0 <= found < vocab_size:
        raise ConfigurationError(
            f"{place}: {SECTION}.mask_token_id is {found!r}; expected a token below vocab_size = {vocab_size}."
        )
    return found
