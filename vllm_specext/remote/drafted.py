"""A tree that a client has drafted, as it is in a message."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vllm_specext.remote.protocol import MalformedError, Verify, Welcome, ids_from_bytes


@dataclass(frozen=True)
class Drafted:
    """``N`` nodes, each after its parent, the likeliest first: where there is too little room, the last are left out.
    The root, number 0, is the last token of the text and not among them; node ``n`` is the ``n``-th, from 1 on."""

    ids: np.ndarray
    """``[N]`` int64."""
    parents: np.ndarray
    """``[N]`` int64: a node's parent, or 0."""
    levels: int

    @classmethod
    def of(cls, message: Verify, limits: Welcome) -> "Drafted":
        """The tree of a message, if it is one, and not larger than ``limits`` allow. A chain may be as long as trees
        are large.

        Raises ``MalformedError``.
        """
        ids = ids_from_bytes(message.ids, limits.vocabulary)
        parents = np.frombuffer(message.parents, dtype=np.uint8).astype(np.int64)
        return cls.checked(ids, parents, limits.max_nodes, limits.max_levels)

    @classmethod
    def checked(cls, ids: np.ndarray, parents: np.ndarray, max_nodes: int, max_levels: int) -> "Drafted":
        """The same from ``ids`` and ``parents`` ``[N]``."""
        if len(ids) != len(parents):
            raise MalformedError(f"a tree has {len(ids)} token ids and {len(parents)} parents.")
        if len(ids) > max_nodes:
            raise MalformedError(f"a tree has {len(ids)} nodes, but at most {max_nodes} are allowed.")
        levels = [0]
        for node, parent in enumerate(parents.tolist(), 1):
            if parent >= node:
                raise MalformedError(f"node {node} of a tree has parent {parent}, which does not come before it.")
            levels.append(levels[parent] + 1)
        is_chain = max(levels) == len(ids)
        if max(levels) > max_levels and not is_chain:
            raise MalformedError(f"a tree has {max(levels)} levels, but at most {max_levels} are allowed.")
        if len(set(zip(parents.tolist(), ids.tolist(), strict=True))) < len(ids):
            raise MalformedError("two children of one node of a tree hold the same token.")
        return cls(ids, parents, max(levels))

    @classmethod
    def made(cls, ids: np.ndarray, parents: np.ndarray) -> "Drafted":
        """The tree of ``ids`` and ``parents`` ``[N]`` that are known to be one."""
        return cls(ids, parents, max(_levels(parents)))

    @classmethod
    def chain(cls, ids: list[int]) -> "Drafted":
        return cls(np.array(ids, dtype=np.int64), np.arange(len(ids)), len(ids))

    def under(self, token: int) -> "Drafted":
        """What is drafted after the root's child that holds ``token``, which becomes the root."""
        children = np.flatnonzero((self.parents == 0) & (self.ids == token))
        if not len(children):
            return Drafted(self.ids[:0], self.parents[:0], 0)
        return self._after(int(children[0]) + 1, self.levels)

    def accepted(self, tokens: Sequence[int]) -> int | None:
        """How many of the ``tokens`` that follow the root the tree has; ``None`` where it has all and may have more."""
        node = 0
        for place, token in enumerate(tokens):
            children = np.flatnonzero((self.parents == node) & (self.ids == token))
            if not len(children):
                return place
            node = int(children[0]) + 1
        return None

    def within(self, levels: int) -> "Drafted":
        """The nodes that are no deeper than ``levels``."""
        return self if self.levels <= levels else self._after(0, levels)

    def _after(self, root: int, levels: int) -> "Drafted":
        """What is after the node ``root``, at most so many ``levels``."""
        numbers, depths = {root: 0}, {root: 0}
        kept: list[int] = []
        parents: list[int] = []
        for node, parent in enumerate(self.parents.tolist(), 1):
            if parent in numbers and depths[parent] < levels and node != root:
                numbers[node], depths[node] = len(kept) + 1, depths[parent] + 1
                kept.append(node - 1)
                parents.append(numbers[parent])
        return Drafted.made(self.ids[kept], np.array(parents, dtype=np.int64))

    def first_path(self) -> "Drafted":
        """The chain of first children from the root on."""
        at, path = 0, []
        for node, parent in enumerate(self.parents.tolist(), 1):
            if parent == at:
                at = node
                path.append(node - 1)
        return Drafted.chain(self.ids[path].tolist())

    def first(self, nodes: int) -> "Drafted":
        """The tree of the first so many nodes."""
        return self if nodes >= len(self.ids) else Drafted.made(self.ids[:nodes], self.parents[:nodes])

    @property
    def is_chain(self) -> bool:
        return self.levels == len(self.ids)

    def depths(self) -> np.ndarray:
        """``[N]`` int64: levels under the root."""
        return np.array(_levels(self.parents)[1:], dtype=np.int64)


def _levels(parents: np.ndarray) -> list[int]:
    """Of the root and all nodes."""
    levels = [0]
    for parent in parents.tolist():
        levels.append(levels[parent] + 1)
    return levels
