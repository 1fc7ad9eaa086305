"""What all drafters that vLLM has classes for need of the target and of the finished configuration."""

from typing import Any

from vllm.model_executor.model_loader import get_model_cls
from vllm.model_executor.models.interfaces import supports_eagle3

from vllm_specext.errors import ConfigurationError
from vllm_specext.options.stock import StockDrafterOptions
from vllm_specext.refusals import Launch


def check_vocabulary(place: str, vocab_size: Any, launch: Launch) -> int:
    """The size of the target's vocabulary, which a drafter's has to be."""
    targets = launch.model.get_vocab_size()
    if vocab_size != targets:
        raise ConfigurationError(f"{place}: vocab_size is {vocab_size!r} but the target has {targets}.")
    return targets


def check_top_k(options: StockDrafterOptions, most: int) -> None:
    """Refuse more children of a node than the drafter's vocabulary has tokens, ``most``."""
    if options.tree_top_k > most:
        raise ConfigurationError(
            f"speculative-config key 'tree_top_k' is {options.tree_top_k}, but the drafter's vocabulary has {most} "
            "tokens."
        )


def check_target(method: str, launch: Launch) -> None:
    """Refuse a target whose class in vLLM does not give hidden states of its layers."""
    if not supports_eagle3(get_model_cls(launch.model)):
        raise ConfigurationError(
            f"method {method!r} cannot be combined with a target of the architecture "
            f"{launch.model.architecture!r}, because vLLM's class for it does not give hidden states of its layers."
        )
