"""Draft trees of a drafter that gives the distributions of several positions at once, each without knowing what is
drafted at the others (block drafters): DDTree (arXiv 2604.12989), for a batch of requests.

The probability of a path is then the product of its tokens', so the most likely nodes of all are found without
another pass of the drafter. They are found level by level: the tree of the ``N`` best nodes has with a node of level
``d`` its ``d - 1`` ancestors, so that it has at most ``N - d + 1`` nodes there, the best of the level. Scores are
float32 and ties go to the earlier node: as no log-probability is above 0, a parent then never ranks below its child.
"""

import torch
from torch import Tensor

from vllm_specext.tree.topology import Topology


def best_tree(tokens: Tensor, log_probs: Tensor, nodes: int) -> tuple[Tensor, Topology, Tensor]:
    """The ``nodes`` most likely nodes, best first: their tokens ``[R, nodes]`` int64, the trees, and how many of the
    tokens are accepted if the probabilities are right, ``[R]`` float32.

    ``tokens`` and ``log_probs`` ``[R, D, k]``, int64 and float32: the ``k`` most likely of each of ``D`` positions,
    best first. ``nodes`` is at most ``most_nodes(D, k)``.
    """
    requests, levels, k = tokens.shape
    scores, parents, depths, kept = [log_probs.new_zeros(requests, 1)], [], [], []
    first = 0
    for level in range(levels):
        width = scores[-1].shape[1]
        grown = (scores[-1][..., None] + log_probs[:, level, None]).flatten(1)
        order = grown.argsort(dim=1, descending=True, stable=True)[:, : max(nodes - level, 1)]
        scores.append(grown.gather(1, order))
        kept.append(tokens[:, level].gather(1, order % k))
        # Place 0 of the pool is the root; a level's nodes follow those of the level before.
        parents.append(first + order // k)
        depths.append(torch.full_like(order, level + 1))
        first += width
    ranked = torch.cat(scores[1:], dim=1)
    order = ranked.argsort(dim=1, descending=True, stable=True)
    place = torch.arange(1, order.shape[1] + 1, device=order.device).expand_as(order)
    root = order.new_zeros(requests, 1)
    node_of = torch.cat((root, torch.empty_like(order).scatter_(1, order, place)), dim=1)
    order = order[:, :nodes]
    parent = node_of.gather(1, torch.cat(parents, dim=1).gather(1, order))
    depth = torch.cat(depths, dim=1).gather(1, order)
    shape = Topology.of(torch.cat((root, parent), dim=1), torch.cat((root, depth), dim=1), levels)
    return torch.cat(kept, dim=1).gather(1, order), shape, ranked.gather(1, order).exp().sum(dim=1)


def most_nodes(levels: int, k: int) -> int:
    """Nodes of the tree in which every node above the last level has ``k`` children."""
    return levels if k == 1 else k * (k**levels - 1) // (k - 1)
