"""Trees of what a drafter gives for all positions at once, where no position knows what is drafted at another.

Shapes: ``R`` requests, ``k`` tokens kept of a position, ``d`` hidden size.
"""

from collections.abc import Callable

from torch import Tensor

from vllm_specext.engine.drafting.several_depths import Grown
from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.marginals import best_tree

Best = tuple[Tensor, Tensor]
"""The most likely tokens of positions and their log-probabilities, ``[R, positions, k]``."""
FindBest = Callable[[Tensor, int, Tensor], tuple[Tensor, Tensor]]
"""The ``k`` most likely tokens of rows with features ``[rows, d]`` and a sharpness each, ``[rows]``."""


def best_of(features: Tensor, k: int, sharpness: Tensor, find: FindBest) -> Best:
    """The best of positions with ``features`` ``[R, positions, d]``, of requests with a ``sharpness`` ``[R]``."""
    requests, positions, _ = features.shape
    tokens, log_probs = find(features.flatten(0, 1), k, sharpness[:, None].expand(-1, positions).flatten())
    return tokens.view(requests, positions, -1), log_probs.view(requests, positions, -1)


def tree_of(best: Best, shape: TreeShape) -> TreeDraft:
    """The tree of the most likely nodes, or a chain of the best token of each position."""
    tokens, log_probs = (found[..., : 1 if shape.top_k == 1 else None] for found in best)
    nodes, topology, expected = best_tree(tokens, log_probs, shape.nodes)
    drafted = min(shape.depth, shape.nodes)
    return TreeDraft(nodes, topology, lambda: tokens[:, :, 0], drafted, expected=expected)


def grown_of(best: Best, shape: TreeShape) -> Grown:
    """The same, of a drafter whose trees end at one depth."""
    return {shape.depth: tree_of(best, shape)}
