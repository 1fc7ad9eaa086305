"""What our methods add to vLLM's own registries: drafters' classes, and names of checkpoint formats."""

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.options.stock import StockDrafterOptions
from vllm_specext.registry import METHODS

_MODELS = "vllm.model_executor.models"
_QWEN3S_EAGLE3 = f"{_MODELS}.qwen3_eagle3:Eagle3Qwen3ForCausalLM"
DEEPSEEKS = {
    "DFlashQwen3DSparkModel": f"{_MODELS}.qwen3_dflash:DFlashQwen3ForCausalLM",
    "Qwen3Eagle3Model": _QWEN3S_EAGLE3,
    "Eagle3Qwen3Eagle3Model": _QWEN3S_EAGLE3,
}
"""Names of DeepSeek's drafters, and what vLLM's methods dflash and eagle3 make of them, for which vLLM has no classes
(vllm#49614): its classes that have the same parameters."""


@replaces(
    "vllm.transformers_utils.configs.speculators.algos.SUPPORTED_SPECULATORS_TYPES",
    name="formats of drafters",
    why="checkpoints in the format of the speculators library name a method of a closed list",
    how="further entries: eagle3-tree is read as vLLM reads eagle3, and so for the methods of its other types",
    upstream="none known: the list is vLLM's own",
    until="vLLM lets plug-ins register speculative methods",
    kind="set",
)
def register_drafter_formats() -> None:
    """Let checkpoints in the format of the speculators library name our method where they could name vLLM's."""
    from vllm.transformers_utils.configs.speculators.algos import SUPPORTED_SPECULATORS_TYPES

    for name, method in METHODS.items():
        if issubclass(method.options, StockDrafterOptions) and method.options.speculators_types:
            # One that calls itself by our method's name is read as the first type.
            reader = SUPPORTED_SPECULATORS_TYPES.get(method.options.speculators_types[0])
            if reader is not None:
                SUPPORTED_SPECULATORS_TYPES[name] = reader


@replaces(
    "vllm.model_executor.models.registry.ModelRegistry.register_model",
    name="drafters' classes",
    why="vLLM builds a drafter by the name of its architecture",
    how="called: vLLM's own way for plug-ins",
    upstream="none needed",
    until="always",
    kind="registered",
)
def register_serving_models() -> None:
    """Tell vLLM where the drafters' serving models are; imports none of them."""
    from vllm.model_executor.models.registry import ModelRegistry

    served = {method.architecture: method.serving_model for method in METHODS.values()} | DEEPSEEKS
    for architecture, model in served.items():
        if architecture is not None and architecture not in ModelRegistry.models:
            ModelRegistry.register_model(architecture, model)
