"""The target as a training sees it without running it: its configuration, and what its tokenizer is told apart by."""

import hashlib
import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from safetensors import SafetensorError, safe_open
from transformers import AutoConfig

from vllm_specext.architectures import has_known_states
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import MAX_DIMENSION, positive, read_config
from vllm_specext.methods.source import LANGUAGE_MODEL, drafter_directory
from vllm_specext.refusals import FEATURES, Launch, refused
from vllm_specext.registry import CAPTURE, METHODS
from vllm_specext.training.fingerprint import CONFIG

ROLE = "--target"
TOLD = (
    *("tensor_parallel", "recurrent", "hybrid", "sparse_mla", "mla", "multimodal", "encoder_decoder"),
    *("mrope", "sliding_window"),
)
"""The features of the table of refusals that ``config.json`` tells of."""
RECURRENT = {"mamba", "mamba2", "linear_attention", "recurrent", "conv"}
"""Types of layers, as configurations name them, that keep a state in the place of keys and values."""
ATTENTION = {"attention", "full_attention", "sliding_attention"}
TEXT_FILES = tuple(pattern for pattern in LANGUAGE_MODEL if pattern != "*.safetensors")
SMALL_FILE = 2**26
"""No tokenizer's file is larger."""


@dataclass(frozen=True)
class TargetModel:
    """What ``config.json`` says."""

    name: str
    """A hub id, or an absolute path."""
    folder: Path
    config: dict[str, Any]
    """The language model's part of it."""
    hidden_size: int
    vocab_size: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate_size: int
    """The width of the MLP that a token passes: of a layer with experts, of those together that it is sent to."""
    max_length: int
    parameters: int | None
    """Numbers in its files, ``None`` where only the configuration was fetched."""


def read_target(model: str, *, weights: bool = False) -> TargetModel:
    """Read ``model``, a folder or a hub id, of which the weights are fetched only if they are needed.

    Raises ``ConfigurationError``.
    """
    folder = drafter_directory(model, None, LANGUAGE_MODEL if weights else ("*.json", "*.jinja"), ROLE)
    whole = read_config(folder)
    if whole.get("speculators_config") is not None:
        raise ConfigurationError(
            f"{ROLE} is {model!r}, which is itself a drafter (its config.json has speculators_config); expected the "
            "model that it shall draft for."
        )
    config = _described_in(folder, whole)
    hidden, heads = (positive(folder, config, key, int) for key in ("hidden_size", "num_attention_heads"))
    sizes = {
        "hidden_size": hidden,
        "vocab_size": positive(folder, config, "vocab_size", int),
        "layers": positive(folder, config, "num_hidden_layers", int),
        "heads": heads,
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or hidden // heads,
        "intermediate_size": _mlp_size(folder, config),
        "max_length": positive(folder, config, "max_position_embeddings", int),
    }
    for key, size in sizes.items():
        if type(size) is not int or not 0 < size <= MAX_DIMENSION:
            raise ConfigurationError(
                f"{folder / 'config.json'}: {key} is {size!r}; expected a whole number from 1 to {MAX_DIMENSION}."
            )
    is_folder = Path(model).expanduser().is_dir()
    return TargetModel(
        name=str(folder.resolve()) if is_folder else model,
        folder=folder,
        config=config,
        parameters=sum(math.prod(shape) for file in target_files(folder) for _, shape in _shapes(file)) or None,
        **sizes,
    )


def _described_in(folder: Path, whole: dict[str, Any]) -> dict[str, Any]:
    """The language model's part of a configuration, which is in a section of its own where the model is more than that.
    Keys that the file leaves out are as transformers has them, where it knows the model."""
    inner = whole.get("text_config")
    parts = {**whole, **inner} if isinstance(inner, dict) else whole
    known: dict[str, Any] = {}
    with suppress(Exception):  # of a model that it does not know, or of keys that it cannot read
        known = AutoConfig.from_pretrained(folder, trust_remote_code=False).get_text_config().to_dict()
    # The classes' names are the whole model's.
    return {**known, **parts, "architectures": whole.get("architectures")}


def _mlp_size(folder: Path, config: dict[str, Any]) -> int:
    """The larger of the dense layers' and of the experts' together that a token is sent to, as far as both are whole
    numbers under the usual keys."""

    def number(*keys: str) -> int:
        return next((value for key in keys if type(value := config.get(key)) is int and value > 0), 0)

    expert = number("moe_intermediate_size") or (
        number("intermediate_size") if number("num_experts", "num_local_experts") else 0
    )
    shared = number("shared_expert_intermediate_size") or number("n_shared_experts") * expert
    experts = number("num_experts_per_tok", "top_k_experts") * expert + shared
    if experts and config.get("intermediate_size") is None:
        return experts
    return max(experts, positive(folder, config, "intermediate_size", int))


def target_files(folder: Path) -> list[Path]:
    """The files with the target's tensors; Mistral's repositories have all of them a second time, under other names."""
    return [path for path in sorted(folder.glob("*.safetensors")) if not path.name.startswith("consolidated")]


def refuse_target(method: str, target: TargetModel, tensor_parallel: int, captures: bool) -> None:
    """Refuse a target that ``method`` would refuse to serve, by the same table, as far as ``config.json`` tells.
    ``captures``: whether hidden states are kept of it, which is refused of some as well.

    vLLM knows more, and refuses by the table again before it loads the target.
    """
    launch = Launch(
        arguments=None,
        model=_described(target.config),
        parallel=SimpleNamespace(tensor_parallel_size=tensor_parallel),
        kv_cache_dtype="auto",
        drafts_trees=True,
    )
    for feature in FEATURES:
        if feature.name not in TOLD or not feature.applies(launch):
            continue
        asked = [(METHODS[method], f"a {method} drafter cannot be served with")]
        asked += [(CAPTURE, "hidden states are not captured of")] if captures else []
        for does, what in asked:
            found = refused(feature, does.declares)
            if found is not None and not found.trees_only:
                why = "capturing them has not been tried with it" if does is CAPTURE else found.reason
                raise ConfigurationError(f"{ROLE} is {target.name!r}, but {what} {found.feature}, because {why}.")


def _described(config: dict[str, Any]) -> SimpleNamespace:
    """The questions of the table, answered from ``config.json``."""
    kinds = {str(kind) for kind in config.get("layer_types") or []}
    architectures = [str(name) for name in config.get("architectures") or []]
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return SimpleNamespace(
        is_hybrid=_is_hybrid(kinds, architectures),
        architectures=architectures,
        is_attention_free=str(config.get("model_type")).startswith(("mamba", "rwkv")),
        use_mla=config.get("kv_lora_rank") is not None,
        hf_text_config=SimpleNamespace(**config),
        is_multimodal_model=sees_or_hears(config),
        is_encoder_decoder=config.get("is_encoder_decoder") is True,
        uses_mrope=isinstance(rope, dict) and "mrope_section" in rope,
        get_sliding_window=lambda: window,
    )


def _is_hybrid(kinds: set[str], architectures: list[str]) -> bool:
    """Some hybrids' configurations name no ``kinds`` of layers, and some models of their classes have no others
    than attention."""
    if kinds and kinds <= ATTENTION:
        return False
    return bool(kinds & RECURRENT) or has_known_states(architectures)


def sees_or_hears(config: dict[str, Any]) -> bool:
    """Whether the model of this ``config.json`` reads more than text. It is trained for with text alone."""
    return any(config.get(key) is not None for key in ("vision_config", "audio_config"))


def tokenizer_hash(target: TargetModel) -> str:
    """Of the files from which prompts are made: tokenizer, template and generation config, whatever they are called."""
    found = hashlib.sha256()
    for path in sorted(path for pattern in TEXT_FILES for path in target.folder.glob(pattern)):
        if path.name != CONFIG and path.stat().st_size <= SMALL_FILE:
            found.update(f"{path.name}\n".encode() + path.read_bytes())
    return found.hexdigest()


def _shapes(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    try:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118
                yield name, tuple(file.get_slice(name).get_shape())
    except (SafetensorError, OSError) as error:
        raise ConfigurationError(f"{path} is truncated or damaged: its tensors cannot be read.") from error
