"""Draft trees of a drafter that has read the nodes of another tree, for a batch of requests.

A block drafter's positions know nothing of one another (``marginals.py``). Once it has read a tree as text, it knows
what follows each node, given the path to it. The most likely nodes of all that follow a node of that tree, or its root,
are then found without another pass. Each tree that is read brings the next one nearer to one that is grown level by
level, a pass for each level (docs/benchmarks.md has figures).

Scores are sums of log-probabilities in float32, each taken from its parent's downwards, and ties go to the candidate of
the earlier node: as no log-probability is above 0, a parent then never ranks below its child.
Shapes: ``R`` requests, ``P`` nodes of the tree that was read, ``k`` tokens after each, ``N`` nodes of the new one.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from vllm_specext.tree.topology import Topology

LEAST = -1e4
"""The least log-probability that counts, so that sums are finite."""
NOT_AMONG_THE_BEST = -20.0
"""Log-probability of a node that is none of the ``k`` most likely ones after its parent: it and what follows it are for
want of others."""


class Found(NamedTuple):
    """Where the nodes of the tree that was read, and its root, are among the candidates."""

    scores: Tensor
    """``[R, P + 1]``"""
    candidates: Tensor
    """``[R, P + 1]``; the root's means nothing."""
    is_other: Tensor
    """Nodes that are none of the most likely ones after their parents, ``[R, P + 1]`` bool."""


def informed_tree(
    read: Tensor, shape: Topology, tokens: Tensor, log_probs: Tensor, nodes: int, levels: int
) -> tuple[Tensor, Topology, Tensor]:
    """The ``nodes`` most likely nodes, best first: their tokens ``[R, nodes]`` int64, the trees, and how many of the
    tokens are accepted if the probabilities are right, ``[R]`` float32.

    ``read`` ``[R, P]`` and ``shape``: the tree that was read. ``tokens`` and ``log_probs`` ``[R, P + 1, k]``, int64 and
    float32: the ``k`` most likely tokens after its root and its nodes, best first. ``nodes`` is at most ``(P + 1) k``.
    ``levels``: of the new trees at most, one more than those that were read have.
    """
    requests, _, k = tokens.shape
    log_probs = log_probs.clamp(min=LEAST)
    found = _find(read, shape, tokens, log_probs, levels)
    # A node has a place before those that follow it, which is a candidate if it is not among the best of its parent.
    others = torch.where(found.is_other, found.scores, -torch.inf)[..., None]
    scores = torch.cat((others, found.scores[..., None] + log_probs), dim=2).flatten(1)
    order = scores.argsort(dim=1, descending=True, stable=True)
    ranks = torch.arange(1, order.shape[1] + 1, device=order.device).expand_as(order)
    node_of = torch.empty_like(order).scatter_(1, order, ranks)
    order = order[:, :nodes]
    place, column = order // (k + 1), order % (k + 1)
    after = torch.where(column == 0, shape.parents.gather(1, place), place)
    parent = torch.where(after == 0, 0, node_of.gather(1, found.candidates.gather(1, after)))
    depth = shape.depths.gather(1, after) + 1
    root = order.new_zeros(requests, 1)
    own = torch.cat((root, read), dim=1)[..., None]
    new = torch.cat((own, tokens), dim=2).flatten(1).gather(1, order)
    made = Topology.of(torch.cat((root, parent), dim=1), torch.cat((root, depth), dim=1), levels)
    return new, made, scores.gather(1, order).exp().sum(dim=1)


def _find(read: Tensor, shape: Topology, tokens: Tensor, log_probs: Tensor, levels: int) -> Found:
    _, places, k = tokens.shape
    place = torch.arange(places, device=tokens.device)
    parents = shape.parents[:, 1:]
    beside = parents[..., None].expand(-1, -1, k)
    is_it = tokens.gather(1, beside) == read[..., None]
    rank, is_other = is_it.int().argmax(dim=2), ~is_it.any(dim=2)
    own = log_probs.gather(1, beside).gather(2, rank[..., None])[..., 0]
    own = torch.where(is_other, NOT_AMONG_THE_BEST, own)
    own = torch.nn.functional.pad(own, (1, 0))
    scores = torch.zeros_like(own)
    for _ in range(levels - 1):
        scores = scores.gather(1, shape.parents) + own
    candidates = torch.where(is_other, place[1:] * (k + 1), parents * (k + 1) + 1 + rank)
    return Found(scores, *(torch.nn.functional.pad(x, (1, 0)) for x in (candidates, is_other)))
