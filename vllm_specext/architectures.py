"""Architectures of targets, as ``config.json`` names them, by what their layers are."""

from collections.abc import Sequence
from typing import Any

LLAMA_LIKE = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")
"""Architectures whose decoder layers are attention after a norm and an MLP after another norm, so that each can run
alone."""


GATED_DELTA_RULE = (
    "Qwen3NextForCausalLM",
    "Qwen3_5ForCausalLM",
    "Qwen3_5MoeForCausalLM",
    "Qwen3_5ForConditionalGeneration",
    "Qwen3_5MoeForConditionalGeneration",
)
"""Architectures whose recurrent layers all are vLLM's ``QwenGatedDeltaNetAttention``."""


MAMBA_2 = (
    "FalconH1ForCausalLM",
    "GraniteMoeHybridForCausalLM",
    "NemotronHForCausalLM",
    "NemotronHPuzzleForCausalLM",
)
"""Architectures whose recurrent layers all are vLLM's ``MambaMixer2``."""


def has_known_states(architectures: Sequence[str] | None) -> bool:
    """Whether we have kernels for the recurrent layers of a model of these architectures."""
    return bool(set(architectures or ()) & {*GATED_DELTA_RULE, *MAMBA_2})


def is_other_hybrid(model: Any) -> bool:
    """Whether the target of this ``ModelConfig`` has recurrent layers that we have no kernels for."""
    return bool(model.is_hybrid or model.is_attention_free) and not has_known_states(model.architectures)
