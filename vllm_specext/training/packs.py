"""Rows of text packed one after the other into as many tokens as every step has.

Which rows a pack has follows from its number alone: not from the processes that share the packs, nor from where a
training was interrupted.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.packed_attention import Layout
from vllm_specext.training.rows import FeatureRow, RowSource
from vllm_specext.training.step import Share

OPEN = 8
"""Packs that are filled at the same time. A row goes into the first that has room for it."""


@dataclass(frozen=True)
class Packed:
    """``B`` packs of ``T`` tokens, with zeros where a pack is not full. ``d`` hidden size."""

    numbers: tuple[int, ...]
    """Of the packs, in the order in which they come."""
    layout: Layout
    token_ids: Tensor
    """``[B, T]`` int64."""
    loss_mask: Tensor
    """``[B, T]`` bool."""
    features: Tensor
    """``[B, T, d]`` float32."""
    aux: Tensor | None
    """``[B, T, n · d]`` float32."""
    lengths: Tensor
    """``[B, T]``: of the row that each token is in; 1 where there is none."""
    learnt: Tensor
    """``loss_mask`` on the host, for who would have to wait for a GPU."""


def pack_order(lengths: Sequence[int], order: Sequence[int], tokens: int) -> list[list[int]]:
    """The numbers of the rows of each pack, in which at most ``tokens`` fit, for rows that come in ``order``."""
    done: list[list[int]] = []
    filling: list[tuple[list[int], int]] = []
    for row in order:
        for place, (rows, used) in enumerate(filling):
            if used + lengths[row] <= tokens:
                filling[place] = [*rows, row], used + lengths[row]
                break
        else:
            if len(filling) == OPEN:
                fullest = max(range(OPEN), key=lambda place: filling[place][1])
                done.append(filling.pop(fullest)[0])
            filling.append(([row], lengths[row]))
    return done + [rows for rows, _ in filling]


class PackedBatches:
    """``size`` packs of ``tokens`` tokens at a time, in an endless row of epochs."""

    def __init__(self, source: RowSource, tokens: int, size: int, device: torch.device | str = "cpu") -> None:
        longest = max(source.lengths)
        if longest > tokens:
            raise ConfigurationError(
                f"the longest row has {longest} tokens, but a pack has {tokens}; expected packs of at least as many."
            )
        self.source, self.tokens, self.size, self.device = source, tokens, size, device
        self.taken = 0
        """Packs so far."""
        self.epoch, self.first = -1, 0
        """The epoch that is known, and the number of its first pack."""
        self.packs: list[list[int]] = []

    def take(self, share: Share) -> tuple[int, ...]:
        """The numbers of the next packs, of those that are in ``share``."""
        self.taken += self.size
        return tuple(share.of(range(self.taken - self.size, self.taken)))

    def make(self, numbers: Sequence[int]) -> Packed:
        """The packs of these ``numbers``, of which none is lower than those made before."""
        # The epoch is known after the rows are.
        packs = [self.source.read(rows, self.epoch) for rows in map(self._rows, numbers)]
        return pack(packs, self.tokens, tuple(numbers), self.device)

    def _rows(self, number: int) -> list[int]:
        """Of pack ``number``, which is none of an epoch before the known one."""
        while number >= self.first + len(self.packs):
            self.first += len(self.packs)
            self.epoch += 1
            self.packs = pack_order(self.source.lengths, self.source.order(self.epoch), self.tokens)
        return self.packs[number - self.first]

    def state_dict(self) -> dict[str, Any]:
        """How many packs are taken at a time does not matter: another number of processes goes on in the same
        order."""
        return {"packs": self.taken, "tokens": self.tokens, "rows": len(self.source.lengths)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        for name, now in self.state_dict().items():
            if name != "packs" and state[name] != now:
                raise ConfigurationError(
                    f"the training that is to go on has {name} {state[name]}, but {name} is {now} now; expected the "
                    "same."
                )
        self.taken = state["packs"]
        self.epoch, self.first, self.packs = -1, 0, []


def pack(
    packs: Sequence[Sequence[FeatureRow]], tokens: int, numbers: tuple[int, ...], device: torch.device | str = "cpu"
) -> Packed:
    """Each of ``packs`` one after the other in ``tokens`` slots."""
    lengths = [[len(row.token_ids) for row in rows] for rows in packs]
    filled = [[*rows, *([tokens - sum(rows)] if sum(rows) < tokens else [])] for rows in lengths]
    # Noise is divided by a row's length.
    of_rows = [torch.cat([torch.full((n,), n) for n in rows]) for rows in lengths]
    joined = [FeatureRow(*map(_join, zip(*rows, strict=True))) for rows in packs]
    aux = [row.aux for row in joined if row.aux is not None]
    learnt = _stack([row.loss_mask.bool() for row in joined], tokens)
    return Packed(
        numbers,
        Layout.of(filled, device),
        _stack([row.token_ids.long() for row in joined], tokens).to(device),
        learnt.to(device),
        _stack([row.features for row in joined], tokens).to(device).float(),
        _stack(aux, tokens).to(device).float() if aux else None,
        _stack(of_rows, tokens).clamp(min=1).to(device),
        learnt,
    )


def _join(parts: Sequence[Tensor | None]) -> Any:
    return None if parts[0] is None else torch.cat(list(parts))  # type: ignore[arg-type]


def _stack(rows: Sequence[Tensor], tokens: int) -> Tensor:
    return torch.stack([F.pad(row, (*(0, 0) * (row.ndim - 1), 0, tokens - len(row))) for row in rows])
