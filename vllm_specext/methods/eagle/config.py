"""The configuration of an EAGLE drafter: the parameters of vLLM's class, and the target's layers that it reads."""

from itertools import pairwise
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.eagle.checkpoint import DrafterShape
from vllm_specext.methods.eagle.latent import latent_attention
from vllm_specext.methods.eagle.layer_ids import as_inputs
from vllm_specext.methods.stock.config import (
    FULL,
    WINDOWED,
    Drafter,
    check_arithmetic,
    draft_vocabulary_size,
    flag,
    integer,
    layers_of,
)

_AUX = "eagle_aux_hidden_state_layer_ids"
_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


def drafter_shape(drafter: Drafter, states: int, target_hidden_size: int, at_once: bool) -> DrafterShape:
    """The parameters of a drafter that reads so many ``states`` of the target, and drafts all positions ``at_once`` or
    one after another. Raises ``ConfigurationError``."""
    place, config = drafter.place, drafter.config
    is_eagle3, is_qwen = drafter.class_name != "EagleLlamaForCausalLM", drafter.class_name == "Eagle3Qwen3ForCausalLM"
    sizes = {key: integer(place, config, key) for key in ("vocab_size", "hidden_size", "intermediate_size")}
    heads = integer(place, config, "num_attention_heads")
    kv_heads = integer(place, config, "num_key_value_heads", None if is_qwen else heads)
    layers = layers_of(drafter)
    hidden_size, vocab_size = sizes["hidden_size"], sizes["vocab_size"]
    check_arithmetic(drafter)
    _check_windows(place, config, layers, is_eagle3)
    draft_vocab_size = draft_vocabulary_size(drafter, vocab_size) if is_eagle3 else vocab_size
    attention_bias = flag(place, config, "attention_bias")
    any_bias = attention_bias or flag(place, config, "bias")
    norms = {key: flag(place, config, key) for key in _NORMS}
    nested = _eagle_config(place, config)
    return DrafterShape(
        is_eagle3=is_eagle3,
        vocab_size=vocab_size,
        draft_vocab_size=draft_vocab_size,
        hidden_size=hidden_size,
        target_hidden_size=target_hidden_size,
        states=states,
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=integer(place, config, "head_dim", hidden_size // heads),
        mlp_size=sizes["intermediate_size"],
        qkv_bias=attention_bias if is_eagle3 else flag(place, config, "qkv_bias", any_bias),
        o_bias=any_bias and not is_qwen,
        mlp_bias=flag(place, config, "mlp_bias") and not is_qwen,
        qk_norm=is_qwen,
        input_norm=is_eagle3 and nested.get("norm_before_fc", norms["norm_before_fc"]),
        fc_norm=is_eagle3 and norms["fc_norm"],
        at_once=at_once,
        latent=latent_attention(drafter),
    )


def target_layers(drafter: Drafter, num_layers: int) -> list[int]:
    """The numbers of the target's layers after which an EAGLE-3 drafter reads hidden states.

    At the top of the file vLLM's numbers stand, as speculators writes them: ``i`` is the input of layer ``i``. Those in
    ``eagle_config`` are read as ``as_inputs`` says. DeepSeek writes the layers whose output is read, from 0 up, as
    ``target_layer_ids``. Raises ``ConfigurationError``.
    """
    place, nested = drafter.place, _eagle_config(drafter.place, drafter.config)
    is_deepseeks = drafter.raw.get("architectures") == ["Qwen3Eagle3Model"]
    key = "target_layer_ids" if is_deepseeks else _AUX
    ids = getattr(drafter.config, key, None) or []
    if not ids and not is_deepseeks and (ids := nested.get(_AUX) or []):
        key = f"eagle_config.{_AUX}"
    if not isinstance(ids, list | tuple) or any(type(id) is not int for id in ids):
        raise ConfigurationError(f"{place}: {key} is {ids!r}; expected a list of integers.")
    if is_deepseeks and not ids:
        raise ConfigurationError(f"{place}: {key} is {ids!r}; expected a list of integers.")
    if is_deepseeks:
        taken = [id + 1 for id in ids]
    elif ids:
        taken = list(ids) if key == _AUX else as_inputs(ids)
    else:
        taken, key = [2, num_layers // 2, num_layers - 3], f"{_AUX} is missing, and the default"
    if any(id >= later for id, later in pairwise(taken)) or taken[0] < 0 or taken[-1] > num_layers:
        raise ConfigurationError(
            f"{place}: {key} is {ids or taken}; expected ascending numbers of the target's {num_layers} layers."
        )
    for key in ("num_aux_hidden_states", "num_aux_layers"):
        if (count := getattr(drafter.config, key, None)) not in (None, len(taken)):
            raise ConfigurationError(f"{place}: {key} is {count!r}, but {len(taken)} of the target's layers are read.")
    return taken


def _eagle_config(place: str, config: Any) -> dict[str, Any]:
    """The nested keys of SpecForge and ModelOpt, as far as vLLM's class honours them."""
    nested = getattr(config, "eagle_config", None) or {}
    if not isinstance(nested, dict):
        raise ConfigurationError(f"{place}: eagle_config is {nested!r}; expected a JSON object.")
    for key in ("use_aux_hidden_state", "norm_before_fc"):
        if key in nested and not isinstance(nested[key], bool):
            raise ConfigurationError(f"{place}: eagle_config.{key} is {nested[key]!r}; expected true or false.")
    if not nested.get("use_aux_hidden_state", True):
        raise ConfigurationError(
            f"{place}: eagle_config.use_aux_hidden_state is False; EAGLE-3 drafters have to read states of the "
            "target's layers, which is true."
        )
    for key in ("norm_before_residual", "fc_norm", "norm_output"):
        if nested.get(key) and not getattr(config, key, None):
            raise ConfigurationError(
                f"{place}: eagle_config.{key} is {nested[key]!r}; vLLM's class reads {key} at the top alone."
            )
    return nested


def _check_windows(place: str, config: Any, layers: int, is_eagle3: bool) -> None:
    kinds = getattr(config, "layer_types", None)
    if not kinds:
        return
    if not is_eagle3:
        raise ConfigurationError(f"{place}: layer_types is {kinds!r}; vLLM's class for EAGLE cannot have the key.")
    if not isinstance(kinds, list) or len(kinds) < layers or not {*kinds[:layers]} <= {FULL, WINDOWED}:
        raise ConfigurationError(
            f"{place}: layer_types is {kinds!r}; expected {FULL!r} or {WINDOWED!r} for each of the {layers} layers."
        )
    if WINDOWED in kinds[:layers]:
        integer(place, config, "sliding_window")
