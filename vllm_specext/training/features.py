"""The target's features of rows of text, made when the rows are read.

A feature is the target's last hidden state after the final norm, the input of its ``lm_head``.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.generators import generator
from vllm_specext.training.rows import FeatureRow

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@torch.no_grad()
def target_features(target: "PreTrainedModel", token_ids: Tensor) -> Tensor:
    """Run ``target``, a causal language model of transformers, over ``token_ids`` ``[B, L]``: ``[B, L, d]`` float32."""
    features: Tensor = target.base_model(token_ids, use_cache=False).last_hidden_state.float()
    return features


class TargetRows:
    """Rows of token ids, each ``[length]``, with what ``target`` makes of them; all positions count.

    With ``layers`` the hidden states after so many of the target's layers are read too, side by side. Where
    ``kept``, features are computed when a row is first read, for ``together`` rows at once, and stay in memory in
    bfloat16: two bytes for each of a token's ``d`` numbers. Else they are computed whenever a row is read.
    """

    def __init__(
        self,
        target: "PreTrainedModel",
        rows: Sequence[Tensor],
        seed: int,
        *,
        layers: Sequence[int] = (),
        kept: bool = True,
        together: int = 16,
        bfloat16: bool = False,
    ) -> None:
        self.target, self.rows, self.seed = target, rows, seed
        self.layers, self.bfloat16 = layers, bfloat16
        self.lengths = [len(row) for row in rows]
        self.kept: dict[int, FeatureRow] | None = {} if kept else None
        # A row's features depend, in their last bits, on the rows that they are computed with. Those are always the
        # same, so that a training that goes on has the same features.
        first = self.order(-1)
        groups = [sorted(first[start : start + together]) for start in range(0, len(rows), together)]
        self.group_of = {row: group for group in groups for row in group}

    def order(self, epoch: int) -> list[int]:
        found: list[int] = torch.randperm(len(self.rows), generator=generator(self.seed, epoch)).tolist()
        return found

    def read(self, rows: Sequence[int], epoch: int = 0) -> list[FeatureRow]:
        if self.kept is None:
            return self._compute(rows)
        for row in rows:
            if row not in self.kept:
                group = self.group_of[row]
                made = zip(group, self._compute(group), strict=True)
                self.kept |= {number: _in_bfloat16(features) for number, features in made}
        return [self.kept[row] for row in rows]

    @torch.no_grad()
    def _compute(self, rows: Sequence[int]) -> list[FeatureRow]:
        device = self.target.lm_head.weight.device
        token_ids = [self.rows[row] for row in rows]
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bfloat16):
            # Causal attention: what is padded on the right cannot reach a real position.
            output = self.target.base_model(
                pad(token_ids).to(device), use_cache=False, output_hidden_states=bool(self.layers)
            )
        states = [output.hidden_states[layer] for layer in self.layers]
        aux = torch.cat(states, dim=-1).float() if states else None
        features = output.last_hidden_state.float()
        return [
            FeatureRow(ids, torch.ones_like(ids), features[i, : len(ids)], None if aux is None else aux[i, : len(ids)])
            for i, ids in enumerate(token_ids)
        ]


def _in_bfloat16(row: FeatureRow) -> FeatureRow:
    return row._replace(features=row.features.bfloat16(), aux=None if row.aux is None else row.aux.bfloat16())


def pad(rows: Sequence[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence([row.long() for row in rows], batch_first=True)


class RandomOrder:
    """``size`` numbers below ``count`` at a time, in random order, each once before any comes again. The state has the
    place in it."""

    def __init__(self, count: int, size: int, seed: int) -> None:
        self.count, self.size = count, size
        self.generator = torch.Generator().manual_seed(seed)
        self.left: list[int] = []

    def take(self) -> list[int]:
        while len(self.left) < self.size:
            self.left += torch.randperm(self.count, generator=self.generator).tolist()
        taken, self.left = self.left[: self.size], self.left[self.size :]
        return taken

    def state_dict(self) -> dict[str, Any]:
        place = {"generator": self.generator.get_state(), "left": torch.tensor(self.left)}
        return {"rows": self.count, "batch": self.size, **place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, now in (("rows", self.count), ("batch", self.size)):
            if state[name] != now:
                raise ConfigurationError(
                    f"the training that is to go on has {name} {state[name]}, but {name} is {now} now; expected the "
                    "same."
                )
        self.generator.set_state(state["generator"])
        self.left = state["left"].tolist()
