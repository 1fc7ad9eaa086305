"""EAGLE-3 drafters that are trained, on disk, as vLLM's own class reads them.

Both layouts of such files are read, as ``convert`` knows them: that of SafeAILab, SpecForge and others, and that of
speculators. A drafter has to be one that `Eagle3Drafter` is: one layer of Llama's kind, without biases or norms of
``fc``'s input. Most that are released have an output layer of their own for 32,000 tokens. `methods/eagle` checks and
serves the others too.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_specext.convert import plain, speculators
from vllm_specext.convert.eagle3 import BEFORE_FC, BEFORE_RESIDUAL, LAYER_IDS, TARGET_SIZE, Eagle3, shape_of
from vllm_specext.convert.files import open_source
from vllm_specext.convert.formats import is_nested
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import DRAFT_VOCABULARY, load_tensor, read_rotary, tensor_headers, write_files
from vllm_specext.methods.stock.checkpoint import weight_files
from vllm_specext.training.eagle3.shape import STATES, Eagle3Shape, default_layers

OTHERS_LAYER, LAYER = "midlayer.", "layers.0."
"""The layer's name in the layout of SafeAILab and SpecForge, and ours."""
EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
"""Tensors that a file may have. The embedding is the target's, and not read."""
D2T, T2D = DRAFT_VOCABULARY
PLAIN: dict[str, tuple[Any, ...]] = {
    "model_type": ("llama",),
    "num_hidden_layers": (1,),
    "logit_scale": (None, 1, 1.0),
    **dict.fromkeys((BEFORE_FC, "fc_norm", "norm_output"), (False,)),
    **dict.fromkeys(("attention_bias", "mlp_bias", "bias"), (None, False)),
}
"""Keys that say that a drafter is another one than ours, with the values that do not."""


def read_shape(directory: Path, target_layers: int) -> Eagle3Shape:
    """The drafter in ``directory``, whose tensors are compared with ``config.json``; ``target_layers`` are the
    target's. Raises ``ConfigurationError``, also for an EAGLE-3 drafter that is another one than ours."""
    source = open_source(directory)
    drafter = (speculators if is_nested(source.config) else plain).read(source)
    place, layer = source.place, drafter.layer
    parts = shape_of(place, drafter)
    _check_plain(place, drafter, parts.states)
    if parts.heads % parts.kv_heads or parts.head_dim % 2:
        raise ConfigurationError(
            f"{place}: num_attention_heads is {parts.heads}, num_key_value_heads {parts.kv_heads} and head_dim "
            f"{parts.head_dim}; expected heads that share keys evenly, of an even size."
        )
    return Eagle3Shape(
        vocab_size=parts.vocab_size,
        hidden_size=parts.hidden_size,
        heads=parts.heads,
        kv_heads=parts.kv_heads,
        head_dim=parts.head_dim,
        mlp_size=parts.mlp_size,
        rms_norm_eps=layer["rms_norm_eps"],
        rope_theta=read_rotary(directory, layer, ("default",)).theta,
        max_position_embeddings=layer["max_position_embeddings"],
        layers=default_layers(target_layers) if drafter.layer_ids is None else tuple(drafter.layer_ids),
        draft_vocab_size=parts.draft_vocab_size if HEAD in source.headers else None,
        norm_before_residual=drafter.norms[BEFORE_RESIDUAL],
    )


def _check_plain(place: str, drafter: Eagle3, states: int) -> None:
    said = drafter.layer | drafter.norms | {"model_type": drafter.model_type}
    for key, allowed in PLAIN.items():
        if said.get(key) not in allowed:
            raise ConfigurationError(
                f"{place}: {key} is {said.get(key)!r}; an EAGLE-3 drafter that is trained here has "
                f"{' or '.join(map(repr, allowed))}."
            )
    if drafter.reads_size != drafter.hidden_size:
        raise ConfigurationError(
            f"{place}: {TARGET_SIZE} is {drafter.reads_size}; an EAGLE-3 drafter that is trained here has the target's "
            f"hidden size, as its own, which is {drafter.hidden_size}."
        )
    if states != STATES:
        raise ConfigurationError(
            f"{place}: the drafter reads {states} of the target's states; an EAGLE-3 drafter that is trained here "
            f"reads {STATES}."
        )


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
        LAYER_IDS: list(shape.layers),
        **({BEFORE_RESIDUAL: True} if shape.norm_before_residual else {}),
    }
