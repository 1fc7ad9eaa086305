"""GRIFFIN on vLLM's V2 runner.

The drafter differs from EAGLE's in the model, which returns one feature for the logits and another for the recurrence,
and in using the target's own computation of logits.
"""

from typing import Any

import torch
from torch import nn
from vllm.config import VllmConfig

from vllm_specext.engine.drafting.hidden_states import HiddenStateDrafter
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.target import logits_processor_of
from vllm_specext.engine.drafting.tree_speculator import hidden_state_speculator


class GriffinDrafter(HiddenStateDrafter):
    def load(self, target_model: Any, vllm_config: VllmConfig) -> nn.Module:
        drafter = super().load(target_model, vllm_config)
        drafter.logits_processor = logits_processor_of(target_model)
        return drafter


def speculator(vllm_config: VllmConfig, device: torch.device) -> StepSpeculator:
    """GRIFFIN's speculator, of trees or of chains as the configuration asks."""
    return hidden_state_speculator(vllm_config, device, GriffinDrafter())
