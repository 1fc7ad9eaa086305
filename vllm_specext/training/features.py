"""From rows of text to a drafter's training batches: the target's features, and what goes with them.

A feature is the target's last hidden state after the final norm, the input of its ``lm_head``. Features are computed
when a row first comes and kept in memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

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


def target_rows(target: "PreTrainedModel", rows: Sequence[Tensor], loss_masks: Sequence[Tensor] | None = None) -> Rows:
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


def endless_batches(
    target: "PreTrainedModel", rows: Sequence[Tensor], size: int, generator: torch.Generator, *, bfloat16: bool = False
) -> Iterator[Rows]:
    """``size`` random rows at a time, all ``rows`` once before any comes again.

    Each row's features are computed when it first comes, in bfloat16 arithmetic if asked for, and kept in bfloat16: two
    bytes for each of a token's ``d`` numbers. All positions count.
    """
    device = target.lm_head.weight.device
    kept: dict[int, Tensor] = {}
    order = endless_order(len(rows), generator)
    while True:
        chosen = [next(order) for _ in range(size)]
        if new := sorted({i for i in chosen if i not in kept}):
            with torch.autocast(device.type, dtype=torch.bfloat16, enabled=bfloat16):
                features = target_rows(target, [rows[i] for i in new]).features
            kept |= {i: row[: len(rows[i])].bfloat16() for i, row in zip(new, features, strict=True)}
        token_ids = pad([rows[i] for i in chosen]).to(device)
        features = nn.utils.rnn.pad_sequence([kept[i] for i in chosen], batch_first=True).float()
        lengths = torch.tensor([len(rows[i]) for i in chosen], device=device)
        yield Rows(token_ids, features, present(token_ids, lengths).long(), lengths)


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


def endless_order(count: int, generator: torch.Generator) -> Iterator[int]:
    while True:
        yield from torch.randperm(count, generator=generator).tolist()
