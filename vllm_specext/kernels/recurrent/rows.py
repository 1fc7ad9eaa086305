"""The draft trees of a step as recurrent layers see them, and what is kept of their rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.tree.topology import unpack


@dataclass(frozen=True)
class TreeRows:
    """The draft trees of ``R`` requests: the first ``num_rows`` rows of a step, at most ``N`` for each request."""

    starts: Tensor
    """First row of each request, and one row after the last, ``[R + 1]`` int32."""
    visible: Tensor
    """Nodes that a node sees, itself included, as bits, ``[R, N, words]`` int32."""
    before: Tensor
    """For each node its nearest ancestors, the nearest first, ``[R, N, W - 1]`` int32: nodes, or, before the root,
    -1 for the row before it, -2 for the one before that, and so on."""
    num_rows: int
    levels: int
    """The most nodes below the root that one path has."""


@dataclass(frozen=True)
class KeptRows:
    """What layers were given for the rows of a step's trees, until the accepted paths are known. For ``L`` layers and
    up to ``T`` rows."""

    mixed: Tensor
    """What the convolution is of, ``[L, T, C]``."""
    gates: Tensor
    """One number of each gate for each head, gate after gate, ``[L, T, gates * H]``."""


@dataclass(frozen=True)
class BlockEnds:
    """Where states stay that a path passes on its way, because a block of tokens ends there, which another request may
    go on from. A path passes one end at most."""

    slots: Sequence[Tensor]
    """State slots for them, for each layer ``[R]`` int32; a request's own slot where its path cannot pass an end."""
    rows: Tensor
    """How many rows of a path there are up to the end, ``[R]`` int32, at least 1."""


def rows_before(visible: Tensor, taps: int) -> Tensor:
    """``before`` of `TreeRows` ``[R, N, taps - 1]`` for nodes that see ``visible`` ``[R, N, words]``. The nodes of a
    path are in ascending order, so that the highest bit below a node's own is its parent's."""
    nodes = visible.shape[1]
    node = torch.arange(nodes, dtype=torch.int32, device=visible.device)
    # The rows before the root follow where no ancestors are left, one after the other.
    seen = unpack(visible, nodes) & (node < node[:, None])
    earlier = torch.where(seen, node, -1)
    found = torch.empty(*visible.shape[:2], taps - 1, dtype=torch.int32, device=visible.device)
    for place in range(taps - 1):
        nearest = earlier.amax(dim=2)
        if place > 0:
            above = found[:, :, place - 1]
            nearest = torch.where(above < 0, above - 1, nearest)
        found[:, :, place] = nearest
        earlier = torch.where(earlier == nearest[:, :, None], -1, earlier)
    return found
