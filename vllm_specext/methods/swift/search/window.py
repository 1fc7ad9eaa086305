"""The newest tokens of one request, read once more to see how many of them a set of skipped sub-layers predicts.

The pass reads the text before the window as the target has cached it. It writes its keys and values after the text.
From the start of the window on, the KV slots belong to the window itself, then to the last sampled token, then to the
rows of this pass. Slot ``i`` of these is node ``i``. Each row sees itself and the rows before it.
"""

from typing import Any

import torch
from torch import Tensor

from vllm_specext.tree.topology import pack


class Window:
    """A window of ``width`` tokens and the token after them, in buffers that stay at their addresses."""

    def __init__(self, width: int, device: torch.device) -> None:
        self.width = width
        self.nodes = 2 * width + 1
        self._row = torch.arange(width, device=device)[None]
        node, itself = torch.arange(self.nodes, device=device), self._row.T + width + 1
        self._sees = pack((node > width) & (node <= itself))[None]
        self._ids = torch.zeros(width + 1, dtype=torch.int64, device=device)
        self._start = torch.zeros(1, dtype=torch.int64, device=device)

    def take(self, text: Tensor, first: int) -> None:
        """Take ``text`` ``[width + 1]``, which begins at position ``first``, as the window."""
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
        """Matchness: the share of tokens that are the most likely ones after the token before, by ``logits``
        ``[width, V]``. One number on the device."""
        return (logits.argmax(dim=-1) == self._ids[1:]).float().mean()
