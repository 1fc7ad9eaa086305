"""The shape of draft trees, as tensors on the device.

Node 0 of a tree is its root, the last sampled token; nodes 1 to N are drafted. Parents come before their children, so
that every prefix of the nodes is a tree as well, and siblings hold distinct tokens. Where a request has fewer nodes
than others, padding follows its own: such a node is its own parent, so that no walk from the root reaches it, whatever
token it holds. Who sees whom is kept as bits in 32-bit words: bit ``j`` of word ``w`` in the row of node ``i`` says
that node ``32 w + j`` is ``i`` or one of its ancestors.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

WORD = 32


@dataclass(frozen=True)
class Topology:
    """Trees of ``R`` requests: ``parents`` and ``depths`` ``[R, N + 1]`` int64 (0 for the root), ``ancestors``
    ``[R, N + 1, W]`` int32."""

    parents: Tensor
    depths: Tensor
    ancestors: Tensor

    @classmethod
    def of(cls, parents: Tensor, depths: Tensor, levels: int) -> "Topology":
        """Trees of at most ``levels`` levels from their parents and depths."""
        seen = torch.zeros(*parents.shape, parents.shape[-1], dtype=torch.bool, device=parents.device)
        node = torch.arange(parents.shape[-1], device=parents.device).expand_as(parents)
        for _ in range(levels + 1):
            seen.scatter_(2, node[..., None], True)
            node = parents.gather(1, node)
        return cls(parents, depths, pack(seen))

    @classmethod
    def chain(cls, requests: int, nodes: int, device: torch.device | str) -> "Topology":
        """``requests`` chains of ``nodes`` drafted tokens: what causal attention sees."""
        depths = torch.arange(nodes + 1, device=device)
        seen = torch.ones(nodes + 1, nodes + 1, dtype=torch.bool, device=device).tril()
        one = (depths - 1).clamp(min=0), depths, pack(seen)
        return cls(*(tensor.repeat(requests, *[1] * tensor.dim()) for tensor in one))

    def padded_after(self, num_nodes: Tensor | int) -> "Topology":
        """The same trees, with all nodes after the first ``num_nodes`` as padding. ``num_nodes``: drafted nodes of each
        request, ``[R, 1]``, or one number for all. Depths and ancestors stay as they are."""
        node = torch.arange(self.parents.shape[1], device=self.parents.device)
        return replace(self, parents=torch.where(node > num_nodes, node, self.parents))

    def where(self, chosen: Tensor, others: "Topology") -> "Topology":
        """``others`` for the requests that are ``chosen`` ``[R, 1]`` bool."""
        return Topology(
            torch.where(chosen, others.parents, self.parents),
            torch.where(chosen, others.depths, self.depths),
            torch.where(chosen[..., None], others.ancestors, self.ancestors),
        )


def words(nodes: int) -> int:
    """Number of 32-bit words that hold a bit for each of ``nodes`` nodes."""
    return -(-nodes // WORD)


def pack(flags: Tensor) -> Tensor:
    """``[..., n]`` bool -> ``[..., words(n)]`` int32."""
    count = flags.shape[-1]
    padded = torch.nn.functional.pad(flags, (0, words(count) * WORD - count)).unflatten(-1, (-1, WORD))
    # Bit 31 is the sign; the sum of distinct bits cannot overflow.
    return (padded.int() << _bits(flags.device)).sum(dim=-1, dtype=torch.int32)


def unpack(packed: Tensor, count: int) -> Tensor:
    """``[..., W]`` int32 -> ``[..., count]`` bool."""
    return ((packed[..., None] >> _bits(packed.device)) & 1).flatten(-2)[..., :count].bool()


def _bits(device: torch.device) -> Tensor:
    """Made on the device: a constant copied there would make the host wait."""
    return torch.arange(WORD, dtype=torch.int32, device=device)
