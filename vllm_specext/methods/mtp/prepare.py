"""What an MTP module needs before vLLM builds its configuration: a target that has one, of a kind whose trees have been
run, and that it fits, where it is a checkpoint of its own."""

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.mtp.modules import TARGETS, tensor_names
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.source import drafter_directory
from vllm_specext.methods.stock.checkpoint import FILES, INDEX
from vllm_specext.options.trees import MtpTreeOptions
from vllm_specext.refusals import Launch

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
    modules = TARGETS[architecture]
    # With several modules each drafts one position, and a level of a tree would need one module's caches for all.
    config = launch.model.hf_text_config
    number = getattr(config, modules.key, modules.absent)
    if number != 1:
        raise ConfigurationError(
            f"the target's {modules.key} is {number!r}; method {options.method!r} needs one module, which is 1."
        )
    prefix, is_latent = modules.prefix.format(layers=config.num_hidden_layers), bool(launch.model.use_mla)
    if options.model is not None:
        from vllm_specext.methods.mtp.module_files import check_module

        directory = drafter_directory(options.model, options.revision, FILES)
        check_module(directory, modules, prefix, launch, _told_names(launch, prefix))
        return Prepared(options.for_vllm(model=str(directory)), is_latent=is_latent)
    checkpoint = _checkpoint(launch)
    if (names := _told_names(launch)) and not any(name.startswith(prefix) for name in names):
        raise ConfigurationError(
            f"the target {checkpoint} has no multi-token prediction module, which method {options.method!r} drafts "
            f"with: no name of its tensors begins with {prefix!r}."
        )
    # With the target's quantisation, as vLLM does it.
    fields = options.for_vllm(model=checkpoint, quantization=launch.model.quantization)
    return Prepared(fields, is_latent=is_latent)


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
    return Prepared(options.for_vllm(model=str(directory), disable_eagle_block_drop=True))


def _told_names(launch: Launch, prefix: str = "") -> list[str]:
    """Of the target's tensors, those that begin with ``prefix``. Of one on the hub, only the table of its files is
    fetched for this; none are told of what has no table, or goes to vLLM unread."""
    if launch.arguments.load_format not in ("auto", "hf", "safetensors"):
        return []
    try:
        folder = drafter_directory(_checkpoint(launch), launch.model.revision, (INDEX,))
    except ConfigurationError:  # vLLM knows further kinds of places
        return []
    return [name for name in tensor_names(folder) if name.startswith(prefix)]


def _checkpoint(launch: Launch) -> str:
    """vLLM's own way to name the target's files."""
    return str(launch.model.model_weights or launch.model.model)
