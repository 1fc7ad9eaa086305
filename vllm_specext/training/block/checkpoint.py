"""DFlash and DSpark drafters that are trained, on disk, in the layouts of the released checkpoints.

Of the many layouts of such files those are read whose drafter is one that is trained here: full attention in all
layers, the target's vocabulary, and no scales. `methods/block` checks and serves the others too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.block.checkpoint import MAX_BLOCK
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
from vllm_specext.training.block.layouts import DFLASH, DSPARK, OWN, PLAIN, Layout
from vllm_specext.training.block.shape import BlockDrafterShape

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
"""Tensors that a file may have, which are the target's."""


def read_shape(directory: Path, layout: Layout) -> BlockDrafterShape:
    """The drafter in ``directory``, whose tensors are compared with ``config.json``.

    Raises ``ConfigurationError``, also for a drafter of the method that is another one than ours.
    """
    config, place = read_config(directory), directory / "config.json"
    section = _section(place, config, layout)
    for key, allowed in {"architectures": ([layout.architecture],), **PLAIN, **layout.plain}.items():
        name, found = (layout.name(key), section[key]) if key in section else (key, config.get(key))
        if found not in allowed:
            raise ConfigurationError(
                f"{place}: {name} is {found!r}; a {layout.title} drafter that is trained here has "
                f"{' or '.join(map(repr, allowed))}."
            )
    if set(config.get("layer_types") or []) - {"full_attention"}:
        raise ConfigurationError(
            f"{place}: layer_types is {config['layer_types']!r}; a {layout.title} drafter that is trained here has "
            "full attention alone."
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
    if layout is DSPARK:
        sizes["markov_rank"] = positive(directory, config, "markov_rank", int)
    if not 2 <= sizes["block"] <= MAX_BLOCK:
        raise ConfigurationError(f"{place}: block_size is {sizes['block']}; expected an integer of 2 to {MAX_BLOCK}.")
    confidence = layout is DSPARK and config.get("enable_confidence_head") is True
    if confidence and config.get("confidence_head_with_markov") is not True:
        raise ConfigurationError(
            f"{place}: confidence_head_with_markov is {config.get('confidence_head_with_markov')!r}; a DSpark drafter "
            "that is trained here has True where it has a confidence head."
        )
    shape = BlockDrafterShape(
        **sizes,
        rms_norm_eps=positive(directory, config, "rms_norm_eps", float),
        rope_theta=read_rotary(directory, config, ("default",)).theta,
        reads=_reads(place, layout, section["target_layer_ids"], sizes["target_layers"]),
        mask=_mask(place, layout, section["mask_token_id"], sizes["vocab_size"]),
        confidence=confidence,
    )
    if shape.heads % shape.kv_heads or shape.head_dim % 2:
        raise ConfigurationError(
            f"{place}: num_attention_heads is {shape.heads}, num_key_value_heads {shape.kv_heads} and head_dim "
            f"{shape.head_dim}; expected heads that share keys evenly, of an even size."
        )
    check_checkpoint(directory, shape.parameters())
    there = {name for file in weight_files(directory) for name in tensor_headers(file)}
    if missing := sorted(shape.trained().keys() - there):
        raise ConfigurationError(f"{directory}: the tensor {missing[0]} is missing.")
    return shape


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """All tensors that a drafter of ours has, by name, on the CPU and in the file's dtype, after `read_shape`."""
    return {
        name: load_tensor(file, name)
        for file in weight_files(directory)
        for name in tensor_headers(file)
        if name not in (EMBEDDING, HEAD, *DRAFT_VOCABULARY)
    }


def write_checkpoint(
    directory: Path, shape: BlockDrafterShape, state_dict: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    """Write a drafter to ``directory`` as ``config.json`` and ``model.safetensors``, weights in ``dtype``."""
    write_files(directory, configuration(shape), state_dict, dtype)


def configuration(shape: BlockDrafterShape) -> dict[str, Any]:
    """The ``config.json`` of a drafter, without the type of its weights."""
    layout = DFLASH if shape.markov_rank is None else DSPARK
    own = {"mask_token_id": shape.mask, "target_layer_ids": [layer - 1 for layer in shape.reads]}
    config = {
        "architectures": [layout.architecture],
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
    }
    if layout.section is not None:
        return {**config, layout.section: own}
    return {
        **config,
        **own,
        "sample_from_anchor": True,
        "markov_rank": shape.markov_rank,
        "markov_head_type": "vanilla",
        "enable_confidence_head": shape.confidence,
        **({"confidence_head_with_markov": True} if shape.confidence else {}),
    }


def _section(place: Path, config: dict[str, Any], layout: Layout) -> dict[str, Any]:
    """The object that has ``OWN``."""
    section = config if layout.section is None else config.get(layout.section)
    if not isinstance(section, dict):
        raise ConfigurationError(
            f"{place}: {layout.section} is {section!r}; expected an object with {' and '.join(OWN)}."
        )
    if missing := [key for key in OWN if key not in section]:
        raise ConfigurationError(f"{place}: {layout.name(missing[0])} is missing.")
    return section


def _reads(place: Path, layout: Layout, ids: Any, count: int) -> tuple[int, ...]:
    name = layout.name("target_layer_ids")
    if not isinstance(ids, list) or not ids or any(type(id) is not int for id in ids):
        raise ConfigurationError(f"{place}: {name} is {ids!r}; expected a list of integers.")
    if ids != sorted(set(ids)) or ids[0] < 0 or ids[-1] >= count:
        raise ConfigurationError(
            f"{place}: {name} is {ids}; expected ascending numbers of the target's layers, 0 to {count - 1}."
        )
    return tuple(id + 1 for id in ids)


def _mask(place: Path, layout: Layout, found: Any, vocab_size: int) -> int:
    if type(found) is not int or not 0 <= found < vocab_size:
        raise ConfigurationError(
            f"{place}: {layout.name('mask_token_id')} is {found!r}; expected a token below vocab_size = {vocab_size}."
        )
    return found
