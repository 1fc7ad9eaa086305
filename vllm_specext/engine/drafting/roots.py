"""Where draft trees begin, in buffers that stay where they are.

Shapes: ``R`` requests.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vllm_specext.engine.drafting.node_passes import Nodes
from vllm_specext.kernels.tree_attention import TreeRows


@dataclass(frozen=True)
class Roots:
    """Where the trees of ``R`` requests begin."""

    starts: Tensor
    """KV slot of the first drafted node, counted within the request, ``[R]`` int64."""
    written: Tensor
    """Whether keys and values are kept, ``[R]`` bool."""
    itself: Tensor
    """A row that sees itself alone, as bits, ``[1, 1, 1]`` int32."""
    sharpness: Tensor
    """What the drafter's logits are multiplied by, ``[R]`` float32."""

    @classmethod
    def buffers(cls, requests: int, device: torch.device) -> "Roots":
        starts = torch.zeros(requests, dtype=torch.int64, device=device)
        itself = torch.ones(1, 1, 1, dtype=torch.int32, device=device)
        written = torch.zeros(requests, dtype=torch.bool, device=device)
        return cls(starts, written, itself, torch.ones(requests, dtype=torch.float32, device=device))

    def part(self, requests: int) -> "Roots":
        """The first so many ``requests``."""
        return Roots(self.starts[:requests], self.written[:requests], self.itself, self.sharpness[:requests])

    def take(self, starts: Tensor, written: bool) -> None:
        """Fill in the first requests."""
        self.starts[: len(starts)] = starts
        self.written[: len(starts)] = written

    def sharpen(self, sharpness: Tensor) -> None:
        """Fill in the ``sharpness`` of the first requests."""
        self.sharpness[: len(sharpness)] = sharpness

    def nodes(self, ids: Tensor, root_slots: int) -> Nodes:
        """The roots ``ids`` ``[R]`` as a row each, at their own KV slots, which are ``root_slots`` before the trees."""
        root = self.starts[:, None] - root_slots
        visible = self.itself.expand(len(ids), 1, 1)
        return Nodes(ids[:, None], root, root, self.written[:, None], root[:, 0], visible)

    def verified_only(self, rows: TreeRows, root_slots: int) -> TreeRows:
        """``rows`` that see the verified text alone, whose last token passes for the one node that the kernel asks for.
        The last sampled token, ``root_slots`` before the trees, is not part of it."""
        requests, width, _ = rows.visible.shape
        return replace(
            rows,
            prefix_lens=(self.starts[:requests] - root_slots - 1).clamp(min=0),
            visible=self.itself.expand(requests, width, 1),
            num_nodes=1,
        )

    def mask(self, first: int, end: int, root_slots: int) -> None:
        """Make requests ``first`` to ``end`` padding: they begin with a root, and nothing is kept."""
        self.starts[first:end] = root_slots
        self.written[first:end] = False
