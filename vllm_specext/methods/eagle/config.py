"""The configuration of an EAGLE drafter, as vLLM's own reader and vLLM's class of the drafter understand it.

Checkpoints of SafeAILab and SpecForge have the keys of a language model at the top of ``config.json``, those of
speculators nest them in ``transformer_layer_config``, and older ones for vLLM in ``model``. vLLM's reader brings all to
one form. What vLLM's class would not honour is refused by the key's name.
"""

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from vllm.model_executor.models.registry import ModelRegistry
from vllm.transformers_utils.config import get_config
from vllm.transformers_utils.configs.eagle import EAGLEConfig
from vllm.transformers_utils.configs.speculators import SpeculatorsConfig

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import MAX_DIMENSION, positive, read_config
from vllm_specext.methods.eagle.checkpoint import DrafterShape
from vllm_specext.options import StockDrafterOptions

CLASSES = {
    "eagle3": {
        "Eagle3LlamaForCausalLM": True,
        "Eagle3Qwen3ForCausalLM": True,
        "Eagle3DeepseekV2ForCausalLM": False,
    },
    "eagle": {
        "EagleLlamaForCausalLM": True,
        "EagleCohereForCausalLM": False,
        "EagleMiniCPMForCausalLM": False,
        "EagleMistralForCausalLM": False,
        "EagleMistralLarge3ForCausalLM": False,
        "EagleDeepseekV3ForCausalLM": False,
    },
}
"""vLLM's classes by its method, and whether `drafter_shape` knows their parameters. EagleLlama4ForCausalLM is not among
them: its attention is cut into chunks, which tree attention knows nothing of."""

PARALLEL = "drafts all positions at once (P-EAGLE), which is not supported; allowed are drafters that draft one by one"
MAX_LAYERS = 64
"""The most layers that a drafter may have; real ones have up to four."""

FULL, WINDOWED = "full_attention", "sliding_attention"
MAX_REASON = 300
"""Letters of a reader's error that are shown."""

_AUX = "eagle_aux_hidden_state_layer_ids"
_NORMS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")


@dataclass(frozen=True)
class Drafter:
    place: str
    """The file's name for messages."""
    config: Any
    """The configuration that vLLM's class will see, before our overrides."""
    class_name: str
    """The name of vLLM's class."""
    is_known: bool
    """Whether `drafter_shape` knows its parameters."""


def read_drafter(directory: Path, options: StockDrafterOptions, trust_remote_code: bool) -> Drafter:
    """Raises ``ConfigurationError``."""
    place = str(directory / "config.json")
    _check_file(place, read_config(directory), options, trust_remote_code)
    method = options.stock_method
    try:
        # vLLM makes the same two steps; nothing that the file calls remote code is run.
        config = get_config(str(directory), trust_remote_code=False)
        if not isinstance(config, EAGLEConfig | SpeculatorsConfig):
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
        raise ConfigurationError(f"{place}: quantization_config is set; drafters have to be unquantised.")
    return Drafter(place, config, str(class_name), CLASSES[method][str(class_name)])


def drafter_shape(drafter: Drafter, states: int, target_hidden_size: int) -> DrafterShape:
    """The parameters of a drafter that reads so many ``states`` of the target. Raises ``ConfigurationError``."""
    place, config = drafter.place, drafter.config
    is_eagle3, is_qwen = drafter.class_name != "EagleLlamaForCausalLM", drafter.class_name == "Eagle3Qwen3ForCausalLM"
    sizes = {key: integer(place, config, key) for key in ("vocab_size", "hidden_size", "intermediate_size")}
    heads = integer(place, config, "num_attention_heads")
    kv_heads = integer(place, config, "num_key_value_heads", None if is_qwen else heads)
    layers = integer(place, config, "num_hidden_layers")
    if layers > MAX_LAYERS:
        raise ConfigurationError(f"{place}: num_hidden_layers is {layers}; at most {MAX_LAYERS} are allowed.")
    hidden_size, vocab_size = sizes["hidden_size"], sizes["vocab_size"]
    positive(Path(place).parent, {"rms_norm_eps": getattr(config, "rms_norm_eps", None)}, "rms_norm_eps", float)
    if (activation := getattr(config, "hidden_act", None)) != "silu":
        raise ConfigurationError(f"{place}: hidden_act is {activation!r}; vLLM's class has 'silu' alone.")
    _check_windows(place, config, layers, is_eagle3)
    draft_vocab_size = integer(place, config, "draft_vocab_size", vocab_size) if is_eagle3 else vocab_size
    if draft_vocab_size > vocab_size:
        raise ConfigurationError(
            f"{place}: draft_vocab_size is {draft_vocab_size}; at most vocab_size = {vocab_size} is allowed."
        )
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
    )


def target_layers(drafter: Drafter, num_layers: int) -> list[int]:
    """The numbers of the target's layers after which an EAGLE-3 drafter reads hidden states.

    At the top of the file vLLM's numbers stand, as speculators writes them: ``i`` is the input of layer ``i``. In
    ``eagle_config`` SpecForge and ModelOpt write the layers whose output it is, from 0 up, and others vLLM's numbers;
    SGLang tells them apart by a first number of 1, and so do we. Raises ``ConfigurationError``.
    """
    place, nested = drafter.place, _eagle_config(drafter.place, drafter.config)
    key = _AUX
    ids = getattr(drafter.config, _AUX, None) or []
    if not ids and (ids := nested.get(_AUX) or []):
        key = f"eagle_config.{_AUX}"
    if not isinstance(ids, list | tuple) or any(type(id) is not int for id in ids):
        raise ConfigurationError(f"{place}: {key} is {ids!r}; expected a list of integers.")
    if key != _AUX and ids[0] == 1:
        taken = [id + 1 for id in ids]
    elif ids:
        taken = list(ids)
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


def flag(place: str, config: Any, key: str, default: bool = False) -> bool:
    value = getattr(config, key, None)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigurationError(f"{place}: {key} is {value!r}; expected true or false.")
    return value


def _check_file(place: str, raw: dict[str, Any], options: StockDrafterOptions, trust_remote_code: bool) -> None:
    """Refuse what vLLM's reader would not refuse, or not in a sentence."""
    method = options.stock_method
    architectures = raw.get("architectures")
    if architectures is not None and (
        not isinstance(architectures, list) or not all(isinstance(name, str) for name in architectures)
    ):
        raise ConfigurationError(f"{place}: architectures is {architectures!r}; expected a list of names.")
    for name in architectures or []:
        if name.lower().startswith("peagle"):
            raise ConfigurationError(f"{place}: architectures is {architectures!r}: the drafter {PARALLEL}.")
    for key in ("pard_token", "ptd_token_id"):
        if raw.get(key) is not None:
            raise ConfigurationError(f"{place}: {key} is {raw[key]!r}: the drafter {PARALLEL}.")
    kind = raw.get("speculators_model_type")
    if kind == "peagle":
        raise ConfigurationError(f"{place}: speculators_model_type is 'peagle': the drafter {PARALLEL}.")
    is_nested = raw.get("model_type") is None and ("speculators_model_type" in raw or "speculators_config" in raw)
    allowed = ["eagle3", "eagle3-tree"] if is_nested else [method, options.method]
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


def integer(place: str, config: Any, key: str, default: int | None = None) -> int:
    value = getattr(config, key, None)
    found: int = positive(Path(place).parent, {key: default if value is None else value}, key, int)
    if found > MAX_DIMENSION:
        raise ConfigurationError(f"{place}: {key} is {found}; at most {MAX_DIMENSION} is allowed.")
    return found
