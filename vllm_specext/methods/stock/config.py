"""The configuration of a drafter that vLLM has a class for, as vLLM's own reader and that class understand it.

Checkpoints of the drafters' authors have the keys of a language model at the top of ``config.json``, those of
speculators nest them in ``transformer_layer_config``, and older ones for vLLM in ``model``. vLLM's reader brings all to
one form. What vLLM's class would not honour is refused by the key's name.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm.model_executor.models.registry import ModelRegistry
from vllm.transformers_utils.config import get_config
from vllm.transformers_utils.configs.eagle import EAGLEConfig
from vllm.transformers_utils.configs.speculators import SpeculatorsConfig

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import MAX_DIMENSION, MAX_ROPE_FACTOR, positive, read_config
from vllm_specext.methods.stock.mask_token import refuse_all_at_once
from vllm_specext.options.stock import PEagleTreeOptions, StockDrafterOptions

CLASSES = {
    "eagle3": {
        "Eagle3LlamaForCausalLM": True,
        "Eagle3Qwen3ForCausalLM": True,
        "Eagle3DeepseekV2ForCausalLM": True,
    },
    "eagle": {
        "EagleLlamaForCausalLM": True,
        "EagleCohereForCausalLM": False,
        "EagleMiniCPMForCausalLM": False,
        "EagleMistralForCausalLM": False,
        "EagleMistralLarge3ForCausalLM": False,
        "EagleDeepseekV3ForCausalLM": False,
    },
    "dflash": {"DFlashQwen3ForCausalLM": True, "DFlash2Qwen3ForCausalLM": True},
    "dspark": {"Qwen3DSparkForCausalLM": True},
}
"""vLLM's classes by its method, and whether their parameters are known here. EagleLlama4ForCausalLM is not among
them: its attention is cut into chunks, which tree attention knows nothing of."""

LATENT = ("Eagle3DeepseekV2ForCausalLM", "EagleDeepseekV3ForCausalLM", "EagleMistralLarge3ForCausalLM")
"""Classes with latent attention (MLA), whatever the configuration's model type is."""

MAX_LAYERS = 64
"""The most layers that a drafter may have; real ones have up to eight."""

FULL, WINDOWED = "full_attention", "sliding_attention"
MAX_REASON = 300
"""Letters of a reader's error that are shown."""

ONLY_THE_TABLE = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embeddings in which the number of positions sizes the table, and changes no angle."""


@dataclass(frozen=True)
class Drafter:
    place: str
    """The file's name for messages."""
    config: Any
    """The configuration that vLLM's class will see, before our overrides."""
    raw: dict[str, Any]
    """The file's own keys."""
    class_name: str
    """The name of vLLM's class."""
    is_known: bool
    """Whether its parameters are known here."""


def read_drafter(directory: Path, options: StockDrafterOptions, trust_remote_code: bool) -> Drafter:
    """Raises ``ConfigurationError``."""
    place = str(directory / "config.json")
    raw = read_config(directory)
    _check_file(place, raw, options, trust_remote_code)
    method = options.stock_method
    try:
        # vLLM makes the same two steps; nothing that the file calls remote code is run.
        config = get_config(str(directory), trust_remote_code=False)
        if method == "dspark" and config.model_type == "qwen3" and config.architectures == ["DSparkDraftModel"]:
            config.architectures = ["Qwen3DSparkModel"]  # the other name is DeepSeek V4's
        if method != "dspark" and not isinstance(config, EAGLEConfig | SpeculatorsConfig):
            config = EAGLEConfig(config, method=method, model_type="eagle")
        (architecture,) = config.architectures
    except Exception as error:  # readers of many kinds, which raise whatever a wrong value leads to
        reason = " ".join(str(error).split())[:MAX_REASON].rstrip(". ")
        raise ConfigurationError(
            f"{place} is not a configuration that vLLM reads for method {method!r}: {type(error).__name__} {reason}."
        ) from error
    class_name = _class_name(architecture)
    if class_name not in CLASSES[method]:
        allowed = [name for name in ModelRegistry.models if _class_name(name) in CLASSES[method]]
        raise ConfigurationError(
            f"{place}: architectures makes {architecture!r} of it, which method {options.method!r} does not support; "
            f"supported are {', '.join(name for name in sorted(allowed) if 'peagle' not in name.lower())}."
        )
    if getattr(config, "quantization_config", None) is not None:
        raise ConfigurationError(
            f"{place}: quantization_config is set; drafters have to be unquantised, which vllm-specext convert --to "
            "bfloat16 makes those in float8 and NVFP4."
        )
    return Drafter(place, config, raw, str(class_name), CLASSES[method][str(class_name)])


def configuration(directory: Path) -> Any:
    """What vLLM makes of the ``config.json`` in ``directory``, without any code that it names.

    Raises ``ConfigurationError``.
    """
    try:
        return get_config(str(directory), trust_remote_code=False)
    except Exception as error:  # whatever a wrong value leads to
        reason = " ".join(str(error).split())[:MAX_REASON].rstrip(". ")
        raise ConfigurationError(
            f"{directory / 'config.json'} is not a configuration that vLLM reads: {type(error).__name__} {reason}."
        ) from error


def positions(drafter: Drafter, context: int) -> dict[str, Any]:
    """No position lies after the target's context, and the file's numbers would size the rotary table."""
    rope = getattr(drafter.config, "rope_parameters", None) or {}
    if not isinstance(rope, dict):
        raise ConfigurationError(f"{drafter.place}: rope_parameters is {rope!r}; expected a JSON object.")
    limits = {"factor": MAX_ROPE_FACTOR, "original_max_position_embeddings": MAX_DIMENSION}
    for key, most in limits.items():
        value = rope.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
            raise ConfigurationError(
                f"{drafter.place}: rope_parameters.{key} is {value!r}; expected a positive number of at most {most}."
            )
    if rope.get("rope_type") == "yarn" and (original := rope.get("original_max_position_embeddings")):
        reached = int(original * rope.get("factor", 1))  # the table has no more, whatever else is said
        if reached < context:
            raise ConfigurationError(
                f"{drafter.place}: rope_parameters reach {reached} positions, but --max-model-len is {context}; at "
                f"most {reached} are allowed."
            )
    if rope.get("rope_type", "default") in ONLY_THE_TABLE:
        return {"max_position_embeddings": context}
    integer(drafter.place, drafter.config, "max_position_embeddings")
    return {}


def integer(place: str, config: Any, key: str, default: int | None = None) -> int:
    value = getattr(config, key, None)
    found: int = positive(Path(place).parent, {key: default if value is None else value}, key, int)
    if found > MAX_DIMENSION:
        raise ConfigurationError(f"{place}: {key} is {found}; at most {MAX_DIMENSION} is allowed.")
    return found


def flag(place: str, config: Any, key: str, default: bool = False) -> bool:
    value = getattr(config, key, None)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigurationError(f"{place}: {key} is {value!r}; expected true or false.")
    return value


def layers_of(drafter: Drafter) -> int:
    """The number of a drafter's layers."""
    layers = integer(drafter.place, drafter.config, "num_hidden_layers")
    if layers > MAX_LAYERS:
        raise ConfigurationError(f"{drafter.place}: num_hidden_layers is {layers}; at most {MAX_LAYERS} are allowed.")
    return layers


def check_arithmetic(drafter: Drafter) -> None:
    """Refuse a norm or an activation that vLLM's classes do not have."""
    place, config = drafter.place, drafter.config
    positive(Path(place).parent, {"rms_norm_eps": getattr(config, "rms_norm_eps", None)}, "rms_norm_eps", float)
    if (activation := getattr(config, "hidden_act", None)) != "silu":
        raise ConfigurationError(f"{place}: hidden_act is {activation!r}; vLLM's class has 'silu' alone.")


def draft_vocabulary_size(drafter: Drafter, vocab_size: int) -> int:
    """The tokens that a drafter scores of a vocabulary of ``vocab_size``."""
    size = integer(drafter.place, drafter.config, "draft_vocab_size", vocab_size)
    if size > vocab_size:
        raise ConfigurationError(
            f"{drafter.place}: draft_vocab_size is {size}; at most vocab_size = {vocab_size} is allowed."
        )
    return size


def _check_file(place: str, raw: dict[str, Any], options: StockDrafterOptions, trust_remote_code: bool) -> None:
    """Refuse what vLLM's reader would not refuse, or not in a sentence."""
    architectures = raw.get("architectures")
    if architectures is not None and (
        not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures)
    ):
        raise ConfigurationError(f"{place}: architectures is {architectures!r}; expected a list of names.")
    kind = raw.get("speculators_model_type")
    if not isinstance(options, PEagleTreeOptions):
        refuse_all_at_once(place, raw)
    is_nested = raw.get("model_type") is None and ("speculators_model_type" in raw or "speculators_config" in raw)
    allowed = (*options.speculators_types, options.method)
    if (kind is not None or is_nested) and kind not in allowed:
        raise ConfigurationError(
            f"{place}: speculators_model_type is {kind!r}; method {options.method!r} loads "
            f"{' and '.join(map(repr, allowed))}."
        )
    for key in ("speculators_config", "transformer_layer_config") if is_nested else ():
        if not isinstance(raw.get(key), dict):
            raise ConfigurationError(f"{place}: {key} is {raw.get(key)!r}; expected a JSON object.")
    if trust_remote_code and raw.get("auto_map") and not is_nested:
        raise ConfigurationError(
            f"{place}: auto_map names code, which --trust-remote-code would run; code of drafters is never run, so "
            "leave one of the two out."
        )


def _class_name(architecture: str) -> str | None:
    return getattr(ModelRegistry.models.get(architecture), "class_name", None)
