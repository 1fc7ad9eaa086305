"""Multi-token prediction modules on vLLM's V2 runner, growing trees."""

import torch
from vllm.config import VllmConfig

from vllm_specext.engine.drafting.speculator import StepSpeculator


def mtp(vllm_config: VllmConfig, device: torch.device) -> StepSpeculator:
    """The speculator of a target's module, or of its assistant."""
    if vllm_config.speculative_config.draft_model_config.hf_config.model_type == "gemma4_mtp":  # as vLLM calls it
        from vllm_specext.methods.mtp.assistant import AssistantSpeculator

        return AssistantSpeculator(vllm_config, device)
    from vllm_specext.methods.eagle.speculator import eagle

    return eagle(vllm_config, device)
