"""The configuration class of MoA checkpoints, whose ``model_type`` transformers does not know."""

from transformers import AutoConfig, LlamaConfig


class MoAConfig(LlamaConfig):
    """A Llama configuration in all that vLLM asks a drafter's for; it is unpickled in vLLM's workers."""

    model_type = "moa_spec"


def register() -> None:
    AutoConfig.register(MoAConfig.model_type, MoAConfig, exist_ok=True)
