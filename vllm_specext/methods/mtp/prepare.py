"""What a target's own MTP module needs before vLLM builds its configuration: a target that has one, of a kind whose
trees have been run, or an assistant that fits."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import MAX_CONFIG_BYTES, read_object, tensor_headers
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import drafter_directory
from vllm_specext.methods.stock.checkpoint import FILES, INDEX
from vllm_specext.methods.stock.prepare import fields_of
from vllm_specext.options.trees import MtpTreeOptions
from vllm_specext.refusals import Launch


@dataclass(frozen=True)
class Modules:
    """How targets of an architecture have modules."""

    key: str
    """Of their configuration: the number of modules."""
    absent: int
    """The number where the configuration does not say it."""
    prefix: str
    """With which the names of the modules' tensors begin; of ``{layers}`` layers before it."""


_QWEN3_5 = Modules("mtp_num_hidden_layers", 1, "mtp.")
_EXAONE = Modules("num_nextn_predict_layers", 0, "mtp.")
_LAST_LAYER = Modules("num_nextn_predict_layers", 0, "model.layers.{layers}.")
TARGETS = {
    "DeepseekV3ForCausalLM": _LAST_LAYER,
    "Ernie4_5_MoeForCausalLM": Modules("num_nextn_predict_layers", 0, "model.mtp_block."),
    "ExaoneMoEForCausalLM": _EXAONE,
    "ExaoneMoeForCausalLM": _EXAONE,
    "Glm4MoeForCausalLM": _LAST_LAYER,
    "Glm4MoeLiteForCausalLM": _LAST_LAYER,
    "HYV3ForCausalLM": _LAST_LAYER,
    "MiMoForCausalLM": Modules("num_nextn_predict_layers", 0, "model.mtp_layers."),
    "Qwen3NextForCausalLM": Modules("num_nextn_predict_layers", 1, "mtp."),
    "Qwen3_5ForCausalLM": _QWEN3_5,
    "Qwen3_5MoeForCausalLM": _QWEN3_5,
    "Qwen3_5ForConditionalGeneration": _QWEN3_5,
    "Qwen3_5MoeForConditionalGeneration": _QWEN3_5,
}
"""Architectures of targets. vLLM has classes of many more, and drafts chains with them."""


WITH_ASSISTANT = ("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration")
"""Architectures of targets whose module is a checkpoint of its own."""


def prepare(options: MtpTreeOptions, launch: Launch) -> Prepared:
    """Check the target, and its assistant where it has one. Raises ``ConfigurationError``."""
    architecture = launch.model.architecture
    if architecture in WITH_ASSISTANT:
        return _with_assistant(options, launch)
    if architecture not in TARGETS:
        raise ConfigurationError(
            f"method {options.method!r} cannot be combined with a target of the architecture {architecture!r}, whose "
            f"draft trees have not been run; {', '.join((*WITH_ASSISTANT, *TARGETS))} can, and vLLM's own method 'mtp' "
            "drafts chains."
        )
    if options.model is not None:
        raise ConfigurationError(
            f"speculative-config key 'model' is {options.model!r}, but a target of the architecture {architecture!r} "
            "has its module in its own checkpoint: leave the key out."
        )
    modules = TARGETS[architecture]
    # With several modules each drafts one position, and a level of a tree would need one module's caches for all.
    config = launch.model.hf_text_config
    number = getattr(config, modules.key, modules.absent)
    if number != 1:
        raise ConfigurationError(
            f"the target's {modules.key} is {number!r}; method {options.method!r} needs one module, which is 1."
        )
    # vLLM's own way to name the target's checkpoint, with the target's quantisation.
    checkpoint = launch.model.model_weights or launch.model.model
    if launch.arguments.load_format in ("auto", "hf", "safetensors"):
        prefix = modules.prefix.format(layers=config.num_hidden_layers)
        _check_weights(checkpoint, launch.model.revision, prefix, options.method)
    fields = {**fields_of(options), "model": checkpoint, "quantization": launch.model.quantization}
    return Prepared(fields, is_latent=bool(launch.model.use_mla))


def _with_assistant(options: MtpTreeOptions, launch: Launch) -> Prepared:
    from vllm_specext.methods.mtp.assistant_files import check_assistant

    if options.model is None:
        raise ConfigurationError(
            f"method {options.method!r} needs the speculative-config key 'model' with a target of the architecture "
            f"{launch.model.architecture!r}, whose assistant is a checkpoint of its own."
        )
    if options.attention_backend is not None:
        raise ConfigurationError(
            f"speculative-config key 'attention_backend' is {options.attention_backend!r}, but an assistant reads the "
            "target's cache as the target does: leave the key out; --attention-backend is for both."
        )
    directory = drafter_directory(options.model, options.revision, FILES)
    check_assistant(directory, launch)
    # There are no keys of its own that could be stale.
    return Prepared({**fields_of(options), "model": str(directory), "disable_eagle_block_drop": True})


def _check_weights(checkpoint: str, revision: str | None, prefix: str, method: str) -> None:
    """Refuse a target that was saved without its module, as fine-tuned ones are. Of one on the hub, only the table of
    its files is fetched for this; what has none goes to vLLM unread."""
    try:
        folder = drafter_directory(checkpoint, revision, (INDEX,))
    except ConfigurationError:  # vLLM knows further kinds of places
        return
    names = list(_names(folder))
    if names and not any(name.startswith(prefix) for name in names):
        raise ConfigurationError(
            f"the target {checkpoint} has no multi-token prediction module, which method {method!r} drafts with: no "
            f"name of its tensors begins with {prefix!r}."
        )


def _names(folder: Path) -> Iterable[str]:
    """Of the tensors of a checkpoint. None where they are not told in little."""
    index = folder / INDEX
    if not index.is_file():
        return [name for file in sorted(folder.glob("*.safetensors")) for name in tensor_headers(file)]
    if index.stat().st_size > MAX_CONFIG_BYTES:
        return []
    named = read_object(index).get("weight_map")
    return named if isinstance(named, dict) else []
