"""GRIFFIN on vLLM's V2 runner.

The drafter differs from EAGLE's in the model, which returns one feature for the logits and another for the recurrence,
and in using the target's own computation of logits, for all of the target's tokens or for some.
"""

from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig

from vllm_specext.engine.drafting.draft_head import draft_head
from vllm_specext.engine.drafting.hidden_states import HiddenStateDrafter
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.tree_speculator import hidden_state_speculator


class GriffinDrafter(HiddenStateDrafter):
    def load(self, target_model: Any, vllm_config: VllmConfig) -> nn.Module:
        drafter: Any = super().load(target_model, vllm_config)
        drafter.draft_head = draft_head(drafter.lm_head, target_model, vllm_config.speculative_config)
        return drafter

    def ask_for(self, model: Any, rows: Tensor | None) -> None:
        model.ask_for(rows)

    def target_ids(self, model: Any, tokens: Tensor) -> Tensor:
        found: Tensor = model.draft_head.target_ids(tokens)
        return found


def speculator(vllm_config: VllmConfig, device: torch.device) -> StepSpeculator:
    """GRIFFIN's speculator, of trees or of chains as the configuration asks."""
    return hidden_state_speculator(vllm_config, device, GriffinDrafter())
