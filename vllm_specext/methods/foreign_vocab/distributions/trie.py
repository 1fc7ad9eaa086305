"""The byte trie of a vocabulary, as tensors that all walkers of a batch read at once on the device.

Nodes are numbered level by level, and within a level in the order of their bytes; the root is 0. The edges, sorted by
parent and byte, are then in the order of the nodes that they lead to: edge ``i`` leads to node ``i + 1``, and a step is
a binary search in one array. A walker that has left the trie stays at ``outside``, the number after the last node.

A step reads 12 bytes per node: 8 of the edge, 4 of the token. The 128,850 tokens of Mistral's Tekken that have at most
16 bytes make 257,847 nodes, hence 3.1 MB, where a table ``[nodes, 256]`` of int32 would take 264 MB; they are built in
0.6 s on one core.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

LONGEST = 16
"""Bytes of a target token that SLRS can draft; longer ones are rare, and each byte is a level of the trie."""


@dataclass(frozen=True)
class Trie:
    edges: Tensor
    """``[nodes - 1]`` int64, ascending: 256 times the parent, plus the byte."""
    token: Tensor
    """``[nodes + 1]`` int32: the id whose bytes lead here, the lowest if there are more; -1 where there is none."""
    levels: tuple[slice, ...]
    """The nodes at each depth, from depth 1 on."""
    ids: Tensor
    """``[strings]``: the ids in the trie, sorted by their bytes."""
    ends: Tensor
    """``[strings]``: the nodes where these end."""
    spans: Tensor
    """``[2, nodes]``: first and last + 1 of the strings that pass through a node or end there."""

    @classmethod
    def of(cls, strings: Iterable[tuple[bytes, int]]) -> "Trie":
        """The trie of at least one string; none is empty, and several ids may have the same."""
        ordered = sorted(strings)
        ids = torch.tensor([token for _, token in ordered])
        lengths = torch.tensor([len(text) for text, _ in ordered])
        depth = int(lengths.max())
        padded = b"".join(text.ljust(depth, b"\0") for text, _ in ordered)
        data = torch.frombuffer(bytearray(padded), dtype=torch.uint8).view(-1, depth)

        shared = (data[1:] == data[:-1]).int().cumprod(dim=1).sum(dim=1)
        shared = torch.cat((shared.new_zeros(1), shared.minimum(lengths[1:]).minimum(lengths[:-1])))
        level = torch.arange(depth)[:, None]
        passed = level < lengths
        # The first string that passes through a node brings it along.
        new = passed & (level >= shared)
        node_at = new.flatten().cumsum(0).view(depth, -1)
        depths, first = new.nonzero(as_tuple=True)
        parents = torch.where(depths > 0, node_at[depths - 1, first], 0)
        ends = node_at[lengths - 1, torch.arange(len(ids))]
        nodes = 1 + len(first)
        token = torch.full((nodes + 1,), -1, dtype=torch.int32)
        brought = shared < lengths
        token[ends[brought]] = ids[brought].int()
        start = torch.cat((first.new_zeros(1), first))
        passing = node_at[passed].bincount(minlength=nodes)
        passing[0] = len(ids)
        stops = [1, *(1 + new.sum(dim=1).cumsum(0)).tolist()]
        return cls(
            edges=parents * 256 + data[first, depths],
            token=token,
            levels=tuple(slice(*bounds) for bounds in pairwise(stops)),
            ids=ids,
            ends=ends,
            spans=torch.stack((start, start + passing)),
        )

    @property
    def outside(self) -> int:
        return len(self.edges) + 1

    def to(self, device: torch.device | str) -> "Trie":
        edges, token, ids, ends, spans = (
            own.to(device) for own in (self.edges, self.token, self.ids, self.ends, self.spans)
        )
        return Trie(edges, token, self.levels, ids, ends, spans)

    def step(self, nodes: Tensor, steps: Tensor) -> Tensor:
        """The nodes that the bytes ``steps`` lead to from ``nodes``; both int64, broadcast against each other."""
        wanted = nodes * 256 + steps
        edge = torch.searchsorted(self.edges, wanted).clamp(max=len(self.edges) - 1)
        return torch.where(self.edges[edge] == wanted, edge + 1, self.outside)

    def goes_on(self) -> Tensor:
        """``[nodes + 1]`` bool: whether a node has children."""
        found = torch.zeros(self.outside + 1, dtype=torch.bool, device=self.edges.device)
        found[self.edges >> 8] = True
        return found

    def nearest(self) -> Tensor:
        """``[nodes]`` int32: the token of the longest proper prefix that is one, -1 where none is."""
        found = torch.full_like(self.token[:-1], -1)
        for level in self.levels:
            parents = self.edges[level.start - 1 : level.stop - 1] >> 8
            found[level] = torch.where(self.token[parents] >= 0, self.token[parents], found[parents])
        return found
