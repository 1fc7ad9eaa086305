"""Running a drafter's module outside of vLLM's own speculators."""

from typing import Any

from torch import Tensor, nn
from vllm.config import VllmConfig
from vllm.forward_context import BatchDescriptor, set_forward_context


def run_model(
    model: nn.Module,
    vllm_config: VllmConfig,
    ids: Tensor,
    positions: Tensor,
    metadata: dict[str, Any] | None,
    slot_mappings: dict[str, Tensor] | None,
    **inputs: Tensor,
) -> Any:
    """What ``model`` gives, most give hidden states ``[T, d]``, for tokens ``ids`` at ``positions``, of any shape of
    ``T`` numbers, and its other ``inputs``, given attention metadata and KV slots by layer; without metadata, layers
    skip attention."""
    count = ids.numel()
    with set_forward_context(
        metadata,
        vllm_config,
        num_tokens=count,
        slot_mapping=slot_mappings,
        batch_descriptor=BatchDescriptor(num_tokens=count),
    ):
        return model(input_ids=ids.flatten().int(), positions=positions.flatten(), **inputs)
