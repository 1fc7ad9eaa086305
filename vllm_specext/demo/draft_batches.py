"""Batches for drafters that draft several positions at once: text, and random places in it where drafts begin."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from vllm_specext.training.features import RandomOrder, pad
from vllm_specext.training.step import Progress, Share


class Batch(NamedTuple):
    """``d`` hidden size, ``A`` drafts of a row."""

    token_ids: Tensor
    """``[B, L]``"""
    states: Tensor
    """Hidden states of the target, side by side, ``[B, L, states d]``."""
    last_states: Tensor
    """The target's last ones, ``[B, L, d]``."""
    anchors: Tensor
    """Places of the last known tokens before the drafts, ``[B, A]``."""


class DraftBatches:
    """Random rows with what the target makes of them, all rows once before any comes again. What it makes of a row is
    kept from its first time on, in bfloat16."""

    def __init__(
        self,
        target: LlamaForCausalLM,
        layers: Sequence[int],
        rows: Sequence[Tensor],
        size: int,
        drafts: int,
        positions: int,
    ) -> None:
        """``layers``: the target's, whose inputs are the states. ``size``: ``B``. ``drafts``: ``A``, of so many
        ``positions`` each."""
        self.target, self.layers, self.drafts, self.positions = target, layers, drafts, positions
        self.rows = [row for row in rows if len(row) > positions + 1]
        self.order = RandomOrder(len(self.rows), size, seed=1)
        self.generator = torch.Generator().manual_seed(0)
        self.kept: dict[int, Tensor] = {}

    def next(self, progress: Progress, share: Share) -> Batch:
        everything = self.order.take()
        chosen = share.of(everything)
        rows = [self.rows[i] for i in chosen]
        kept = nn.utils.rnn.pad_sequence([self._states(i) for i in chosen], batch_first=True).float()
        d = self.target.config.hidden_size
        states, last = kept.split([kept.shape[-1] - d, d], 2)
        # The last drafted token is the one after the row at most. A text's first token is never drafted.
        room = (torch.tensor([len(row) for row in rows]) - self.positions)[:, None]
        places = share.of(torch.rand(len(everything), self.drafts, generator=self.generator))
        anchors = 1 + (places * room).long().clamp(max=room - 1)
        return Batch(pad(rows), states, last, anchors)

    @torch.no_grad()
    def _states(self, row: int) -> Tensor:
        """``[L, states d + d]``"""
        if row not in self.kept:
            output = self.target.model(self.rows[row][None], use_cache=False, output_hidden_states=True)
            read = [output.hidden_states[layer] for layer in self.layers]
            self.kept[row] = torch.cat((*read, output.last_hidden_state), dim=-1)[0].bfloat16()
        return self.kept[row]

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order.state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state["order"])
        self.generator.set_state(state["generator"])
