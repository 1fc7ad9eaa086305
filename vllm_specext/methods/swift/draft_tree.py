"""SWIFT's draft tree: a chain, and around each of its tokens as many alternatives as the drafter was unsure.

The chain follows the drafter's best token. Its confidence at a level is the probability of that token. The confidence
decides how many candidates of the level are kept (the chain's token included), and whether the chain goes on after it.
The other candidates are siblings: they hang off the same node and have no children. All nodes are ordered by cumulative
log-probability, best first, and the earlier one first where two tie. So a parent comes before its children, and every
prefix is a tree.
Shapes: ``R`` requests, ``D`` levels, ``K`` candidates per level, ``N`` nodes without the root.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_specext.tree.swift_sizes import GREEDY, SAMPLED
from vllm_specext.tree.topology import Topology, pack


@dataclass(frozen=True)
class DraftTree:
    tokens: Tensor
    """``[R, N]``; padding is 0."""
    topology: Topology
    """Padding is deeper than any level."""
    num_nodes: Tensor
    """``[R]``: the nodes of each request, without padding."""


def goes_on(best_log_probs: Tensor, confidence: float) -> Tensor:
    """Whether the chain continues after tokens with these log-probabilities; any shape."""
    return best_log_probs.exp() >= confidence


def draft_tree(
    tokens: Tensor, log_probs: Tensor, *, sampled: Tensor, confidence: float, nodes: int, max_depth: int
) -> DraftTree:
    """Make a tree for each request, of the ``nodes`` best candidates.

    ``tokens`` and ``log_probs`` ``[R, D, K]`` are each level's most likely tokens, distinct and best first, and their
    log-probabilities, none above 0 nor NaN. What a level holds after the end of a request's chain does not matter.
    ``sampled`` ``[R]`` bool says whether the request's tokens are sampled. The walk goes no deeper than ``max_depth``,
    which is at least ``D``.
    """
    _, depth, width = tokens.shape
    best = log_probs[..., 0]
    reached = pad(goes_on(best, confidence)[:, :-1], (1, 0), value=True).int().cumprod(dim=1).bool()
    rank = torch.arange(width, device=tokens.device)
    kept = (reached[..., None] & (rank < _num_candidates(best, sampled)[..., None])).flatten(1)

    # A running minimum in float64, because a parallel sum may round a child above its parent.
    chain = best.double().cumsum(dim=1).cummin(dim=1).values
    siblings = pad(chain[:, :-1], (1, 0))[..., None] + log_probs[..., 1:]
    scores = torch.cat((chain[..., None], siblings), dim=-1).flatten(1)
    # A candidate of probability 0 still goes before everything that is not kept.
    scores = scores.clamp(min=torch.finfo(scores.dtype).min).where(kept, -torch.inf)
    order = scores.argsort(dim=1, descending=True, stable=True)

    numbers = torch.arange(1, 1 + depth * width, device=order.device).expand_as(order)
    node_of = torch.empty_like(order).scatter_(1, order, numbers)
    order = order[:, :nodes]
    level = order // width
    # A candidate's parent is the chain's node on the level before; that of the first level is the root.
    parents = node_of.gather(1, ((level - 1) * width).clamp(min=0)).where(level > 0, 0)
    num_nodes = kept.sum(dim=1).clamp(max=nodes)
    is_node = torch.arange(order.shape[1], device=order.device) < num_nodes[:, None]

    def after_root(values: Tensor, padding: int) -> Tensor:
        return pad(pad(values.where(is_node, padding), (0, nodes - is_node.shape[1]), value=padding), (1, 0))

    depths = after_root(level + 1, max_depth + 1)
    on_chain = after_root((order % width == 0).long(), 0).bool()
    node = torch.arange(nodes + 1, device=order.device)
    # A node sees the chain above it, itself and the root; padding sees no chain.
    seen = on_chain[:, None, :] & (depths[:, None, :] < depths[:, :, None]) & (depths <= max_depth)[:, :, None]
    seen |= (node == node[:, None]) | (node == 0)
    topology = Topology(after_root(parents, 0), depths, pack(seen)).padded_after(num_nodes[:, None])
    return DraftTree(after_root(tokens.flatten(1).gather(1, order), 0)[:, 1:], topology, num_nodes)


def right_tokens(chains: Tensor, text: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """How many tokens of each chain were right, and how many verification reached: the right ones and the first wrong
    one. ``chains`` and ``text``, the tokens that the target wrote there, are ``[R, D]``; they count as far as both are
    ``known``."""
    right = ((text == chains) & known).long().cumprod(dim=1)
    reached = known & pad(right[:, :-1], (1, 0), value=1).bool()
    return right.sum(dim=1), reached.sum(dim=1)


def _num_candidates(best_log_probs: Tensor, sampled: Tensor) -> Tensor:
    """How many candidates of each level are kept, ``[R, D]``."""
    confidence = best_log_probs.exp()

    def look_up(table: tuple[int, int, int, int]) -> Tensor:
        # The numbers stay on the host: a table on the device would have to be copied there.
        counts = torch.full_like(confidence, table[0], dtype=torch.int64)
        for above, count in zip((0.5, 0.8, 0.95), table[1:], strict=True):
            counts = counts.masked_fill(confidence > above, count)
        return counts

    return torch.where(sampled[:, None], look_up(SAMPLED), look_up(GREEDY))
