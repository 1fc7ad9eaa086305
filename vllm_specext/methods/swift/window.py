"""The newest tokens of one request, read once more to see how many of them a set of skipped sub-layers predicts.

The pass sees the text before the window as the target has cached it. Its own keys and values go behind the text: node
``i`` is slot ``i`` behind what is before the window, which are the window itself, the last sampled token, and then the
rows of this pass, of which each sees itself and those before it.
"""

from typing import Any

import torch
from torch import Tensor

from vllm_specext.tree.topology import pack


class Window:
    """Of ``width`` tokens and the one behind them, in buffers that stay where they are."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self.nodes = 2 * width + 1
        self._row = torch.arange(width, device=device)[None]
        node, own = torch.arange(self.nodes, device=device), self._row.T + width + 1
        self._sees = pack((node > width) & (node <= own))[None]
        self._ids = torch.zeros(width + 1, dtype=torch.int64, device=device)
        self._start = torch.zeros(1, dtype=torch.int64, device=device)

    def take(self, text: Tensor, first: int) -> None:
        """``text`` ``[width + 1]`` begins at position ``first``."""
        self._ids.copy_(text)
        self._start.fill_(first)

    def rows(self) -> dict[str, Any]:
        """The rows of the pass, by the names of the engine's ``Nodes``, but for who writes."""
        start = self._start[:, None]
        return {
            "ids": self._ids[None, :-1],
            "positions": self._row + start,
            "slots": self._row + start + self.width + 1,
            "prefix_lens": self._start,
            "visible": self._sees,
        }

    def matches(self, logits: Tensor) -> Tensor:
        """The share of the tokens that are the most likely ones behind the one before, given ``logits``
        ``[width, V]``; one number on the device."""
        return (logits.argmax(dim=-1) == self._ids[1:]).float().mean()
