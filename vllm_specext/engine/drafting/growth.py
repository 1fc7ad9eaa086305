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

from torch import Tensor

from vllm_specext.engine.drafting.node_passes import NodePasses, Nodes
from vllm_specext.engine.drafting.roots import Roots
from vllm_specext.engine.drafting.several_depths import Grown, Growth, end_at
from vllm_specext.kernels.tree_expansion import expansion

Features = tuple[Tensor, Tensor | None]
"""What a drafter gives for rows: features that logits are made of, and features that the rows' children read (``None``
where they read nothing but their token), ``[rows, d]`` each."""


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


Start = Callable[[Growth], FirstLevel]
"""Finds the first level."""


def grow(
    first: FirstLevel, roots: Roots, growth: Growth, passes: NodePasses[Features], best: Best, longest: int
) -> Grown:
    """Trees, one level after the other. ``longest``: KV slots of the longest request before its first drafted node."""
    shape = growth.shape
    requests, k, starts = growth.requests, shape.top_k, roots.starts[:, None]
    sharpness = roots.sharpness[:, None].expand(-1, k).flatten()
    features = None if first.features is None else first.features[:, None].expand(-1, k, -1)
    growing = expansion(first.tokens[:, :k], first.log_probs[:, :k], shape.depth)
    grown = {}
    for level in range(shape.depth):
        if level:
            nodes = Nodes(
                ids=growing.frontier.tokens,
                positions=(starts + level - 1).expand(-1, k),
                slots=starts + (level - 1) * k + growing.place,
                written=roots.written[:, None],
                prefix_lens=roots.starts,
                visible=growing.frontier.visible,
                features=features,
            )
            predict, regress = passes(nodes, level * k, longest + (shape.depth - 1) * k)
            tokens, log_probs = best(predict, k, sharpness)
            growing.grow(tokens.view(requests, k, -1), log_probs.view(requests, k, -1))
            if regress is not None:
                parents = growing.frontier.parents[..., None].expand(-1, -1, regress.shape[-1])
                features = regress.view(requests, k, -1).gather(1, parents)
        if level + 1 in growth.depths:
            grown[level + 1] = end_at(level + 1, growing, growth)
    return grown


class LevelByLevel:
    """Growth of the trees of a batch from a drafter's first level."""

    def __init__(self, start: Start, passes: NodePasses[Features], best: Best, roots: Roots, root_slots: int) -> None:
        """``roots``: buffers that ``start`` may read too. ``root_slots``: KV slots from the last sampled token's on
        that are not a drafted node's."""
        self._start, self._passes, self._best, self._roots = start, passes, best, roots
        self._root_slots = root_slots

    def __call__(self, growth: Growth) -> Grown:
        first, roots = self._start(growth), self._roots.part(growth.requests)
        return grow(first, roots, growth, self._passes, self._best, growth.longest + self._root_slots)
