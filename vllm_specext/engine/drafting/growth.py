"""Growing draft trees level by level, in the pages of a drafter's KV cache.

From the most likely tokens after the last sampled one a tree grows with one pass per level over the ``k`` frontier
nodes of every request. A level's keys and values go to the KV slots after the accepted prefix, which the scheduler
keeps free as lookahead, and are overwritten by the next step. All shapes follow from the number of requests and the
tree's size, nothing waits for the device, and all that is read lies in buffers that stay where they are, so that a
whole growth can be captured as one graph.
Shapes: ``R`` requests, ``k`` frontier nodes of a request, ``N`` nodes, ``d`` hidden size.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.engine.drafting.node_passes import NodePasses, Nodes
from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.kernels.tree_expansion import expansion
from vllm_specext.tree.budget import TreeShape

Features = tuple[Tensor, Tensor | None]
"""What a drafter gives for rows: features that logits are made of, and features that the rows' children read (``None``
where they read nothing but their token), ``[rows, d]`` each."""


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

    def mask(self, first: int, end: int, root_slots: int) -> None:
        """Make requests ``first`` to ``end`` padding: they begin with a root, and nothing is kept."""
        self.starts[first:end] = root_slots
        self.written[first:end] = False


@dataclass(frozen=True)
class FirstLevel:
    """The most likely tokens after the roots, best first."""

    tokens: Tensor
    """``[R, k or more]`` int64."""
    log_probs: Tensor
    """``[R, k or more]`` float32."""
    features: Tensor | None
    """What the tokens' own pass reads, ``[R, d]``; ``None`` where it reads nothing but them."""


Best = Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]]
"""The most likely tokens of the target that follow rows with these features, so many for each, best first, and their
log-probabilities with the sharpness of each row."""

Start = Callable[[int, bool, int], FirstLevel]
"""Finds the first level for so many requests; after the accepted paths were read from their buffers, or without; with
the KV slots of the longest request."""


def grow(
    first: FirstLevel,
    roots: Roots,
    shape: TreeShape,
    passes: NodePasses[Features],
    best: Best,
    longest: int,
) -> TreeDraft:
    """Trees of this ``shape``, one level after the other. ``longest``: KV slots of the longest request before its first
    drafted node."""
    requests, k, starts = len(roots.starts), shape.top_k, roots.starts[:, None]
    sharpness = roots.sharpness[:, None].expand(-1, k).flatten()
    features = None if first.features is None else first.features[:, None].expand(-1, k, -1)
    growing = expansion(first.tokens[:, :k], first.log_probs[:, :k], shape.depth)
    for level in range(shape.depth - 1):
        nodes = Nodes(
            ids=growing.frontier.tokens,
            positions=(starts + level).expand(-1, k),
            slots=starts + level * k + growing.place,
            written=roots.written[:, None],
            prefix_lens=roots.starts,
            visible=growing.frontier.visible,
            features=features,
        )
        predict, regress = passes(nodes, (level + 1) * k, longest + (shape.depth - 1) * k)
        tokens, log_probs = best(predict, k, sharpness)
        growing.grow(tokens.view(requests, k, -1), log_probs.view(requests, k, -1))
        if regress is not None:
            parents = growing.frontier.parents[..., None].expand(-1, -1, regress.shape[-1])
            features = regress.view(requests, k, -1).gather(1, parents)
    tokens, topology, expected = growing.tree(shape.nodes)
    # The scheduler takes no more of a chain than the tree has levels; what follows is only ever padding.
    return TreeDraft(tokens, topology, growing.chain, min(shape.depth, shape.nodes), expected=expected)


class LevelByLevel:
    """Growth of the trees of a batch from a drafter's first level."""

    def __init__(self, start: Start, passes: NodePasses[Features], best: Best, roots: Roots, root_slots: int) -> None:
        """``roots``: buffers that ``start`` may read too. ``root_slots``: KV slots from the last sampled token's on
        that are not a drafted node's."""
        self._start, self._passes, self._best, self._roots = start, passes, best, roots
        self._root_slots = root_slots

    def __call__(self, requests: int, shape: TreeShape, reads_paths: bool, longest: int) -> TreeDraft:
        first = self._start(requests, reads_paths, longest)
        roots = self._roots.part(requests)
        return grow(first, roots, shape, self._passes, self._best, longest + self._root_slots)
