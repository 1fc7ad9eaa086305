"""The layout of the library speculators, 0.9: ``config.json`` names the target and the method, and has the layer's keys
in an object of their own. The library itself is not used.

vLLM reads the type, the number of tokens and the target's name; the library reads the others too.
"""

from typing import Any

from torch import Tensor

from vllm_specext.convert.eagle3 import BEFORE_RESIDUAL, FIRST, OUTER, Eagle3, renamed
from vllm_specext.convert.eagle3 import read as read_eagle3
from vllm_specext.convert.files import Converted, Source
from vllm_specext.convert.target import Target
from vllm_specext.convert.target import check as check_target
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin import checkpoint as griffin
from vllm_specext.methods.moa import checkpoint as moa
from vllm_specext.registry import METHODS

LAYOUT = "0.9.0"
"""The version of the library whose layout this is."""

ARCHITECTURE = "Eagle3DraftModel"
"""The library's class of an EAGLE-3 drafter."""

CHAIN = 3
"""Tokens that a chain of an EAGLE-3 drafter has, by the library's own converter."""

LAYER, MODEL_TYPES = "transformer_layer_config", ("llama", "qwen3")
_DEFAULT_THETA = 10000.0


def read(source: Source) -> Eagle3:
    """The EAGLE-3 drafter. Raises ``ConfigurationError``."""
    config, place = source.config, source.place
    layer = config.get(LAYER)
    if not isinstance(layer, dict):
        raise ConfigurationError(f"{place}: {LAYER} is {layer!r}; expected a JSON object.")
    if (model_type := layer.get("model_type")) not in MODEL_TYPES:
        raise ConfigurationError(
            f"{place}: {LAYER}.model_type is {model_type!r}; expected {' or '.join(map(repr, MODEL_TYPES))}."
        )
    if not isinstance(config.get(BEFORE_RESIDUAL), bool):
        raise ConfigurationError(
            f"{place}: {BEFORE_RESIDUAL} is {config.get(BEFORE_RESIDUAL)!r}; expected true or false, because where it "
            "is missing speculators takes false and vLLM true."
        )
    outer = {key: config[key] for key in OUTER if key in config}
    known = {*OUTER, LAYER, "architectures", "auto_map", "transformers_version", "torch_dtype", "dtype"}
    unread = tuple(key for key in config if key not in known and not key.startswith("speculators_"))
    return read_eagle3(source, layer, model_type, outer, unread)


def write(source: Source, drafter: Eagle3, target: Target) -> Converted:
    """The EAGLE-3 ``drafter`` in this layout."""
    check_target(target, drafter.reads_size, drafter.vocab_size)
    # What transformers would fill in where these keys are at the top.
    filled_in = {"hidden_act": "silu", "num_key_value_heads": drafter.layer["num_attention_heads"]}
    if drafter.layer.get("rope_parameters") is None:
        filled_in["rope_theta"] = _DEFAULT_THETA
    said = {key: value for key, value in drafter.layer.items() if key not in filled_in or value is not None}
    layer = filled_in | said | {"model_type": drafter.model_type}
    config = {"architectures": [ARCHITECTURE], **_block("eagle3", CHAIN, target), LAYER: layer, **drafter.outer()}
    tensors = renamed(source.tensors(), FIRST)
    return Converted(
        config, tensors, "speculators, type eagle3", "eagle3-tree", names_target=True, left_out=drafter.unread
    )


def of_griffin(source: Source, target: Target) -> Converted:
    """A GRIFFIN drafter with the keys that name its target. Raises ``ConfigurationError``."""
    shape = griffin.read_shape(source.folder)
    check_target(target, shape.hidden_size, shape.vocab_size)
    tensors = griffin.read_tensors(source.folder) | source.draft_vocabulary(shape.vocab_size)
    return _ours(source.config, tensors, "griffin", target)


def of_moa(source: Source, target: Target) -> Converted:
    """A MoA drafter with the keys that name its target. Raises ``ConfigurationError``."""
    shape = moa.read_shape(source.folder)
    check_target(target, shape.hidden_size, shape.vocab_size)
    tensors = moa.read_tensors(source.folder) | source.draft_vocabulary(shape.vocab_size)
    return _ours(source.config, tensors, "moa", target)


def _ours(config: dict[str, Any], tensors: dict[str, Tensor], method: str, target: Target) -> Converted:
    """The keys beside those of the drafter, whose own reader finds its sizes where they were."""
    tokens = METHODS[method].options.model_fields["num_speculative_tokens"].default
    named = config | _block(method, tokens, target)
    return Converted(named, tensors, f"speculators, type {method}", None, names_target=True)


def _block(method: str, tokens: int, target: Target) -> dict[str, Any]:
    return {
        "speculators_model_type": method,
        "speculators_version": LAYOUT,
        "speculators_config": {
            "algorithm": method,
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}],
            "default_proposal_method": "greedy",
            "verifier": {"name_or_path": target.name, "architectures": list(target.architectures)},
        },
        LAYER: {},  # vLLM insists on it
    }
