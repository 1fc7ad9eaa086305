"""EAGLE-3 in the layout of SafeAILab, SpecForge and others: a language model's keys at the top of ``config.json``, and
the first layer is called ``midlayer``."""

from typing import Any

from vllm_specext.convert.eagle3 import (
    BEFORE_FC,
    BEFORE_RESIDUAL,
    LAYER_IDS,
    NORMS,
    OTHERS_FIRST,
    OUTER,
    Eagle3,
    renamed,
)
from vllm_specext.convert.eagle3 import read as read_eagle3
from vllm_specext.convert.files import Converted, Source
from vllm_specext.convert.kinds import Format
from vllm_specext.convert.target import Target
from vllm_specext.convert.target import check as check_target
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.eagle.layer_ids import as_inputs
from vllm_specext.served_drafter import served_keys

ARCHITECTURE = "LlamaForCausalLMEagle3"
_MODEL_TYPES = {
    ARCHITECTURE: "llama",
    "LlamaForCausalLM": "llama",
    "Eagle3LlamaForCausalLM": "llama",
    "Qwen3ForCausalLM": "qwen3",
    "Eagle3Qwen3ForCausalLM": "qwen3",
}
"""vLLM takes the class by these names, and that of the other layout by ``model_type``."""

_NESTED, _USES_STATES = "eagle_config", "use_aux_hidden_state"
_ABOUT_FILES = ("architectures", "auto_map", "transformers_version", "speculators_version")


def read(source: Source) -> Eagle3:
    """The drafter. Raises ``ConfigurationError``."""
    config, place = source.config, source.place
    made_by = config.get("architectures")
    model_type = _MODEL_TYPES.get(str(made_by[0])) if isinstance(made_by, list) and len(made_by) == 1 else None
    if model_type is None:
        raise ConfigurationError(
            f"{place}: architectures is {made_by!r}; expected a list with one of {', '.join(_MODEL_TYPES)}."
        )
    nested, unread = _eagle_config(place, config)
    # Where a drafter names its target, the keys for that are written anew.
    apart = {*OUTER, *_ABOUT_FILES, *served_keys("eagle3-tree", ""), _NESTED}
    layer = {key: value for key, value in config.items() if key not in apart}
    outer = {key: config[key] for key in OUTER if key in config} | nested
    return read_eagle3(source, layer, model_type, outer, unread)


def write(source: Source, drafter: Eagle3, target: Target | None) -> Converted:
    """``drafter`` in this layout. Raises ``ConfigurationError`` for what the layout cannot say."""
    place = source.place
    if drafter.norms[BEFORE_RESIDUAL]:
        raise ConfigurationError(
            f"{place}: {BEFORE_RESIDUAL} is True, which the plain layout of EAGLE-3 has no key for; only False can be "
            "converted, and vLLM serves the checkpoint as it is."
        )
    if drafter.model_type != "llama":
        raise ConfigurationError(
            f"{place}: transformer_layer_config.model_type is {drafter.model_type!r}, and the plain layout of EAGLE-3 "
            "has a layer of Llama's; only 'llama' can be converted, and vLLM serves the checkpoint as it is."
        )
    if (layers := drafter.layer["num_hidden_layers"]) != 1:
        raise ConfigurationError(
            f"{place}: num_hidden_layers is {layers}, and the plain layout of EAGLE-3 has 1; vLLM serves the "
            "checkpoint as it is."
        )
    if target is not None:
        check_target(target, drafter.reads_size, drafter.vocab_size)
    outer = {key: value for key, value in drafter.outer().items() if value not in (None, False)}
    config = {**drafter.layer, **outer, "architectures": [ARCHITECTURE], "model_type": "llama"}
    tensors = renamed(source.tensors(), OTHERS_FIRST)
    return Converted(config, tensors, Format.EAGLE3, "eagle3-tree", left_out=drafter.unread)


def _eagle_config(place: str, config: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """What ``eagle_config`` of SpecForge and ModelOpt says in the keys of ``OUTER``, and its other keys."""
    nested = config.get(_NESTED)
    if nested is None:
        return {}, ()
    if not isinstance(nested, dict):
        raise ConfigurationError(f"{place}: {_NESTED} is {nested!r}; expected a JSON object.")
    if nested.get(_USES_STATES, True) is not True:
        raise ConfigurationError(
            f"{place}: {_NESTED}.{_USES_STATES} is {nested[_USES_STATES]!r}; EAGLE-3 drafters have to read states of "
            "the target's layers, which is True."
        )
    for key in NORMS:
        if key != BEFORE_FC and nested.get(key) and not config.get(key):
            raise ConfigurationError(
                f"{place}: {_NESTED}.{key} is {nested[key]!r}; {key} is read at the top of the file alone."
            )
    found = {BEFORE_FC: nested[BEFORE_FC]} if BEFORE_FC in nested else {}
    ids = nested.get(LAYER_IDS)
    if ids and not config.get(LAYER_IDS):
        are_numbers = isinstance(ids, list) and all(type(id) is int for id in ids)
        found[LAYER_IDS] = as_inputs(ids) if are_numbers else ids
    known = {LAYER_IDS, _USES_STATES, *NORMS}
    return found, tuple(f"{_NESTED}.{key}" for key in nested if key not in known)
