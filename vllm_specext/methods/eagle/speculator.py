"""vLLM's EAGLE drafters on its V2 runner, growing trees.

EAGLE-1 and EAGLE-2 read the target's last hidden states.
EAGLE-3's feature of a token is a linear function of hidden states that several of the target's layers leave.
"""

from typing import Any

import torch
from torch import Tensor, nn
from vllm.config import VllmConfig

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.drafting.float8_head import Float8Head
from vllm_specext.engine.drafting.hidden_states import HiddenStateDrafter
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Step
from vllm_specext.engine.drafting.tree_speculator import hidden_state_speculator
from vllm_specext.engine.float8 import has_head_in_float8


class EagleDrafter(HiddenStateDrafter):
    @replaces(
        "vllm.model_executor.models.llama_eagle3.Eagle3LlamaForCausalLM.lm_head",
        name="output layer in float8",
        why="vLLM 0.32 has no drafters with an output layer in float8",
        how="set to a copy, where draft_lm_head_quantization asks for it",
        upstream="vLLM 0.33's own key of that name, for its own methods",
        until="no vLLM is supported without it, and it is for any method",
        kind="set",
    )
    def load(self, target_model: Any, vllm_config: VllmConfig) -> nn.Module:
        drafter: Any = super().load(target_model, vllm_config)
        if has_head_in_float8(vllm_config.speculative_config.options):
            head = drafter.lm_head
            is_targets = any(module is head for module in target_model.modules())
            drafter.lm_head = Float8Head(head, (lambda: head) if is_targets else None)
        return drafter


class Eagle3Drafter(EagleDrafter):
    def features(self, model: Any, step: Step, rows: Tensor | None) -> Tensor:
        states = step.auxiliary() if rows is None else [states[rows] for states in step.auxiliary()]
        combined: Tensor = model.combine_hidden_states(torch.cat(states, dim=-1))
        return combined


def eagle3(vllm_config: VllmConfig, device: torch.device) -> StepSpeculator:
    """The speculator of EAGLE-3 drafters, of trees or of chains as the configuration asks."""
    return hidden_state_speculator(vllm_config, device, Eagle3Drafter())


def eagle(vllm_config: VllmConfig, device: torch.device) -> StepSpeculator:
    """The same of EAGLE-1 and EAGLE-2 drafters."""
    return hidden_state_speculator(vllm_config, device, EagleDrafter())
