"""What vLLM's EAGLE drafters need before vLLM builds their configuration: a checkpoint that fits the target."""

from typing import Any

from vllm.model_executor.model_loader import get_model_cls
from vllm.model_executor.models.interfaces import supports_eagle3
from vllm.transformers_utils.config import get_config
from vllm.transformers_utils.configs.speculators.algos import SUPPORTED_SPECULATORS_TYPES

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import read_config
from vllm_specext.methods.source import drafter_directory
from vllm_specext.options import StockDrafterOptions
from vllm_specext.refusals import Launch


def prepare(options: StockDrafterOptions, launch: Launch) -> tuple[dict[str, Any], dict[str, Any]]:
    """Values for vLLM's own speculative keys, and overrides of the drafter's ``config.json``.

    Raises ``ConfigurationError``.
    """
    directory = drafter_directory(options.model, options.revision)
    read_config(directory)
    # So that a checkpoint in the speculators' format may name our method, and be served by its own name.
    if (reader := SUPPORTED_SPECULATORS_TYPES.get(options.stock_method)) is not None:
        SUPPORTED_SPECULATORS_TYPES[options.method] = reader
    if options.stock_method == "eagle3":
        check_target(options.method, launch)
    # vLLM's own reader: checkpoints of the speculators library nest what others have at the top.
    config = get_config(str(directory), trust_remote_code=False)
    vocabulary = launch.model.get_vocab_size()
    if config.vocab_size != vocabulary:
        raise ConfigurationError(
            f"{directory / 'config.json'}: vocab_size is {config.vocab_size!r} but the target has {vocabulary}."
        )
    most = getattr(config, "draft_vocab_size", None) or vocabulary
    if options.tree_top_k > most:
        raise ConfigurationError(
            f"speculative-config key 'tree_top_k' is {options.tree_top_k}, but the drafter's vocabulary has {most} "
            "tokens."
        )
    ours = {"method", "model", "revision", "tree_depth", "tree_top_k"}
    fields = options.model_dump(exclude=ours, exclude_none=True)
    return {**fields, "model": str(directory)}, {}


def check_target(method: str, launch: Launch) -> None:
    """Refuse a target whose class in vLLM does not give hidden states of its layers."""
    if not supports_eagle3(get_model_cls(launch.model)):
        raise ConfigurationError(
            f"method {method!r} cannot be combined with a target of the architecture "
            f"{launch.model.architecture!r}, because vLLM's class for it does not give hidden states of its layers."
        )


def check(options: StockDrafterOptions, config: Any) -> None:
    """Look at the configuration that vLLM has made of the drafter's.

    Raises ``ConfigurationError``.
    """
    drafter = config.draft_model_config
    if drafter.use_mla:
        raise ConfigurationError(
            f"method {options.method!r} cannot be combined with a drafter of the architecture "
            f"{drafter.architecture!r}, because tree attention does not read a latent cache (MLA)."
        )
