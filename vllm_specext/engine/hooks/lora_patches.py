"""Which modules of a target LoRA adapters reach, once one of our methods is configured."""

from collections.abc import Callable
from typing import Any

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap
from vllm_specext.refusals import LM_HEAD


def wrap_adapters() -> None:
    """Made in workers, once one of our methods is configured."""
    from vllm.lora import model_manager

    wrap(model_manager, "get_supported_lora_modules", _without_output_layer)


@replaces(
    "vllm.lora.model_manager.get_supported_lora_modules",
    name="adapters of the output layer",
    why=(
        "vLLM lets adapters reach the output layer unless the user names modules, and adapts one row of logits per "
        "request where verification has many"
    ),
    how="wrapped: without it, so that vLLM refuses an adapter that has one as it loads it, by name",
    upstream="none: runner V2 gives adapters one row of logits per request",
    until="vLLM's adapters of the output layer follow drafted tokens",
    signature="model",
)
def _without_output_layer(original: Callable) -> Callable:
    def get_supported_lora_modules(model: Any) -> list[str]:
        return [module for module in original(model) if module != LM_HEAD]

    return get_supported_lora_modules
