"""vLLM's EAGLE drafters on its V2 runner, growing trees.

EAGLE-1 and EAGLE-2 read the target's last hidden states.
EAGLE-3's feature of a token is a linear function of hidden states that several of the target's layers leave.
"""

from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig

from vllm_specext.engine.drafting.hidden_states import HiddenStateDrafter
from vllm_specext.engine.drafting.speculator import StepSpeculator
from vllm_specext.engine.drafting.step import Step
from vllm_specext.engine.drafting.tree_speculator import hidden_state_speculator


class Eagle3Drafter(HiddenStateDrafter):
    def features(self, model: Any, step: Step, rows: Tensor | None) -> Tensor:
        if not step.aux_hidden_states:
            raise RuntimeError("the target gave no auxiliary hidden states")
        states = step.aux_hidden_states if rows is None else [states[rows] for states in step.aux_hidden_states]
        combined: Tensor = model.combine_hidden_states(torch.cat(states, dim=-1))
        return combined


def eagle3(vllm_config: VllmConfig, device: torch.device) -> StepSpeculator:
    """The speculator of EAGLE-3 drafters, of trees or of chains as the configuration asks."""
    return hidden_state_speculator(vllm_config, device, Eagle3Drafter())


def eagle(vllm_config: VllmConfig, device: torch.device) -> StepSpeculator:
    """The same of EAGLE-1 and EAGLE-2 drafters."""
    return hidden_state_speculator(vllm_config, device, HiddenStateDrafter())
