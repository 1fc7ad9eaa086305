"""vLLM's EAGLE drafters on its V2 runner, growing trees.

EAGLE-1 and EAGLE-2 read the target's last hidden states, and differ from GRIFFIN in nothing that the engine sees.
EAGLE-3's feature of a token is a linear function of hidden states that several of the target's layers leave.
"""

from typing import Any

import torch
from torch import Tensor, nn

from vllm_specext.engine.tree_speculator import TreeSpeculator
from vllm_specext.methods.checkpoints import finite


class EagleTreeSpeculator(TreeSpeculator):
    def make_drafter(self, target_model: Any, target_attn_layer_names: set[str]) -> nn.Module:
        drafter = super().make_drafter(target_model, target_attn_layer_names)
        shared = set(map(id, target_model.parameters()))
        own = ((name, weight) for name, weight in drafter.named_parameters() if id(weight) not in shared)
        for _ in finite(self.draft_model_config.model, own):
            pass
        return drafter


class Eagle3TreeSpeculator(EagleTreeSpeculator):
    def features(
        self, last_hidden_states: Tensor, aux_hidden_states: list[Tensor] | None, rows: Tensor | None
    ) -> Tensor:
        if not aux_hidden_states:
            raise RuntimeError("the target gave no auxiliary hidden states")
        states = aux_hidden_states if rows is None else [states[rows] for states in aux_hidden_states]
        combined: Tensor = self.model.combine_hidden_states(torch.cat(states, dim=-1))
        return combined
