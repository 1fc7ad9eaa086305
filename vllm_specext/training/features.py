"""From rows of text to a drafter's training batches: the target's features, and what goes with them.

A feature is the target's last hidden state after the final norm, the input of its ``lm_head``. Features are computed
when a row first comes and kept in memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOISE = 0.2 * 512
"""Width of the uniform noise on a training row's features, divided by the row's length (EAGLE's augmentation)."""


@dataclass(frozen=True)
class Rows:
    """Text with its features, padded on the right with zeros.

    ``token_ids`` ``[B, L]``; ``features`` ``[B, L, d]`` of the same positions; ``loss_mask`` ``[B, L]`` int64, 1
    where the drafter shall learn; ``lengths`` ``[B]``.
    """

    token_ids: Tensor
    features: Tensor
    loss_mask: Tensor
    lengths: Tensor

    def to(self, device: torch.device) -> "Rows":
        return Rows(*(x.to(device) for x in (self.token_ids, self.features, self.loss_mask, self.lengths)))


@dataclass(frozen=True)
class Batch:
    """Inputs ``s``, which are tokens ``s + 1`` and features ``s``, and the features ``s + 1`` to reproduce.

    ``input_ids`` and ``loss_mask`` ``[B, L]``; ``features``, with noise, and ``target_features``, without, ``[B, L,
    d]``.
    """

    input_ids: Tensor
    features: Tensor
    target_features: Tensor
    loss_mask: Tensor


def target_features(
    target: "PreTrainedModel", rows: Sequence[Tensor], loss_masks: Sequence[Tensor] | None = None
) -> Rows:
    """Run ``target``, a causal language model of transformers, over ``rows`` of token ids, each ``[length]``.

    Without ``loss_masks`` all positions count.
    """
    masks = [torch.ones_like(row) for row in rows] if loss_masks is None else loss_masks
    device = target.lm_head.weight.device
    token_ids, loss_mask = pad(rows).to(device), pad(masks).to(device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    with torch.no_grad():
        # Causal attention: what is padded on the right cannot reach a real position.
        features = target.base_model(token_ids, use_cache=False).last_hidden_state.float()
    return Rows(token_ids, features * present(token_ids, lengths)[..., None], loss_mask, lengths)


class FeatureRows:
    """``size`` random rows at a time with their features, all ``rows`` once before any comes again.

    Features are computed when a row first comes, in bfloat16 arithmetic if asked for, and kept in bfloat16: two bytes
    for each of a token's ``d`` numbers. All positions count.
    """

    def __init__(
        self, target: "PreTrainedModel", rows: Sequence[Tensor], size: int, seed: int, *, bfloat16: bool = False
    ) -> None:
        self.target, self.rows, self.bfloat16 = target, rows, bfloat16
        self.order = RandomOrder(len(rows), size, seed)
        self.kept: dict[int, Tensor] = {}
        # A row's features depend, in their last bits, on the rows that they are computed with. Those are always the
        # rows that it first comes with, so that a training that goes on has the same features.
        first = RandomOrder(len(rows), len(rows), seed).take()
        groups = [sorted(first[start : start + size]) for start in range(0, len(rows), size)]
        self.group_of = {row: group for group in groups for row in group}

    def take(self) -> Rows:
        chosen = self.order.take()
        for row in chosen:
            if row not in self.kept:
                self._keep(self.group_of[row])
        device = self.target.lm_head.weight.device
        token_ids = pad([self.rows[i] for i in chosen]).to(device)
        features = nn.utils.rnn.pad_sequence([self.kept[i] for i in chosen], batch_first=True).float()
        lengths = torch.tensor([len(self.rows[i]) for i in chosen], device=device)
        return Rows(token_ids, features, present(token_ids, lengths).long(), lengths)

    def _keep(self, group: list[int]) -> None:
        device = self.target.lm_head.weight.device
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=self.bfloat16):
            features = target_features(self.target, [self.rows[i] for i in group]).features
        self.kept |= {i: row[: len(self.rows[i])].bfloat16() for i, row in zip(group, features, strict=True)}

    def state_dict(self) -> dict[str, Any]:
        return self.order.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state)


def make_batch(rows: Rows, noise: float = NOISE, generator: torch.Generator | None = None) -> Batch:
    """Shift ``rows`` into inputs and targets, and add noise of amplitude ``noise / (2 · length)`` to the inputs.

    A row's last position has no target and never counts. The mask is not shifted: it belongs to the feature's
    position, as in the code that trained the released checkpoints.
    """
    features = rows.features
    if noise:
        uniform = torch.rand(features.shape, generator=generator, dtype=features.dtype).to(features.device) - 0.5
        scale = (noise / rows.lengths)[:, None, None]
        features = features + uniform * scale * present(rows.token_ids, rows.lengths)[..., None]
    loss_mask = rows.loss_mask.clone()
    loss_mask[torch.arange(len(loss_mask), device=loss_mask.device), rows.lengths - 1] = 0
    return Batch(_next(rows.token_ids), features, _next(rows.features), loss_mask)


def pad(rows: Sequence[Tensor]) -> Tensor:
    return nn.utils.rnn.pad_sequence([row.long() for row in rows], batch_first=True)


def _next(x: Tensor) -> Tensor:
    """Position ``s + 1`` at ``s``; zeros at the end."""
    return torch.cat((x[:, 1:], torch.zeros_like(x[:, :1])), dim=1)


def present(token_ids: Tensor, lengths: Tensor) -> Tensor:
    """``[B, L]``: true where a row has a token, false where it is padded."""
    return torch.arange(token_ids.shape[1], device=token_ids.device) < lengths[:, None]


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
