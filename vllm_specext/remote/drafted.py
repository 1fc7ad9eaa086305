"""A tree that a client has drafted, as it is in a message."""

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
        if len(ids) != len(parents):
            raise MalformedError(f"a tree has {len(ids)} token ids and {len(parents)} parents.")
        if len(ids) > limits.max_nodes:
            raise MalformedError(f"a tree has {len(ids)} nodes, but at most {limits.max_nodes} are allowed.")
        levels = [0]
        for node, parent in enumerate(parents.tolist(), 1):
            if parent >= node:
                raise MalformedError(f"node {node} of a tree has parent {parent}, which does not come before it.")
            levels.append(levels[parent] + 1)
        is_chain = max(levels) == len(ids)
        if max(levels) > limits.max_levels and not is_chain:
            raise MalformedError(f"a tree has {max(levels)} levels, but at most {limits.max_levels} are allowed.")
        if len(set(zip(parents.tolist(), ids.tolist(), strict=True))) < len(ids):
            raise MalformedError("two children of one node of a tree hold the same token.")
        return cls(ids, parents, max(levels))

    @classmethod
    def chain(cls, ids: list[int]) -> "Drafted":
        return cls(np.array(ids, dtype=np.int64), np.arange(len(ids)), len(ids))

    def under(self, token: int) -> "Drafted":
        """What is drafted after the root's child that holds ``token``, which becomes the root."""
        children = np.flatnonzero((self.parents == 0) & (self.ids == token))
        if not len(children):
            return Drafted(self.ids[:0], self.parents[:0], 0)
        numbers: dict[int, int] = {int(children[0]) + 1: 0}
        kept: list[int] = []
        parents: list[int] = []
        for place, parent in enumerate(self.parents.tolist()):
            if parent in numbers:
                numbers[place + 1] = len(kept) + 1
                kept.append(place)
                parents.append(numbers[parent])
        levels = [0]
        for parent in parents:
            levels.append(levels[parent] + 1)
        return Drafted(self.ids[kept], np.array(parents, dtype=np.int64), max(levels))
