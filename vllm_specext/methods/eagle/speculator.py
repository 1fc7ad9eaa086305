"""vLLM's EAGLE drafters on its V2 runner, growing trees.

EAGLE-1 and EAGLE-2 read the target's last hidden states, for which `TreeSpeculator` is enough.
EAGLE-3's feature of a token is a linear function of hidden states that several of the target's layers leave.
"""

import torch
from torch import Tensor

from vllm_specext.engine.tree_speculator import TreeSpeculator


class Eagle3TreeSpeculator(TreeSpeculator):
    def features(
        self, last_hidden_states: Tensor, aux_hidden_states: list[Tensor] | None, rows: Tensor | None
    ) -> Tensor:
        if not aux_hidden_states:
            raise RuntimeError("the target gave no auxiliary hidden states")
        states = aux_hidden_states if rows is None else [states[rows] for states in aux_hidden_states]
        combined: Tensor = self.model.combine_hidden_states(torch.cat(states, dim=-1))
        return combined
