"""SWIFT's draft tree: a chain, and around each of its tokens as many alternatives as the drafter was unsure.

The chain follows the drafter's best token. Its confidence at a level, the probability of that token, decides how many
candidates of the level are kept (the chain's own included), and whether the chain goes on behind it. The others are
siblings that hang off the same node and have no children. All are ordered by cumulative log-probability, best first
and the earlier one where they tie, so that a parent comes before its children and every prefix is a tree.
Shapes: ``R`` requests, ``D`` levels, ``K`` candidates per level, ``N`` nodes without the root.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from vllm_specext.tree.topology import Topology, pack

NUM_CANDIDATES = 10
"""Most candidates of a level, in both tables."""

GREEDY = (10, 8, 5, 3)
"""Candidates of a level, by its confidence: at most 0.5, above it, above 0.8, above 0.95. What the published code keeps
where tokens are the target's most likely ones."""

SAMPLED = (10, 5, 3, 1)
"""What it keeps where tokens are sampled; the paper has this table only."""


@dataclass(frozen=True)
class DraftTree:
    tokens: Tensor
    """``[R, N]``; 0 for padding."""
    topology: Topology
    """Padding is deeper than any level."""
    num_nodes: Tensor
    """``[R]``: a request's nodes without padding."""


def goes_on(best_log_probs: Tensor, confidence: float) -> Tensor:
    """Whether the chain continues behind tokens with these log-probabilities; any shape."""
    return best_log_probs.exp() >= confidence


def draft_tree(
    tokens: Tensor, log_probs: Tensor, *, sampled: Tensor, confidence: float, nodes: int, max_levels: int
) -> DraftTree:
    """Trees of the ``nodes`` best candidates.

    ``tokens`` and ``log_probs`` ``[R, D, K]``: each level's most likely tokens, distinct and best first, and their
    log-probabilities, none above 0 nor NaN; what a level holds behind the end of a request's chain does not matter.
    ``sampled`` ``[R]`` bool: the request's tokens are sampled. ``max_levels``, at least ``D``: the walk goes no deeper.
    """
    _, levels, width = tokens.shape
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

    numbers = torch.arange(1, 1 + levels * width, device=order.device).expand_as(order)
    node_of = torch.empty_like(order).scatter_(1, order, numbers)
    order = order[:, :nodes]
    level = order // width
    # A candidate's parent is the chain's node on the level before; that of the first level is the root.
    parents = node_of.gather(1, ((level - 1) * width).clamp(min=0)).where(level > 0, 0)
    num_nodes = kept.sum(dim=1).clamp(max=nodes)
    own = torch.arange(order.shape[1], device=order.device) < num_nodes[:, None]

    def behind_root(values: Tensor, padding: int) -> Tensor:
        return pad(pad(values.where(own, padding), (0, nodes - own.shape[1]), value=padding), (1, 0))

    depths = behind_root(level + 1, max_levels + 1)
    on_chain = behind_root((order % width == 0).long(), 0).bool()
    node = torch.arange(nodes + 1, device=order.device)
    # The chain above a node, itself and the root; padding sees no chain.
    seen = on_chain[:, None, :] & (depths[:, None, :] < depths[:, :, None]) & (depths <= max_levels)[:, :, None]
    seen |= (node == node[:, None]) | (node == 0)
    topology = Topology(behind_root(parents, 0), depths, pack(seen)).padded_after(num_nodes[:, None])
    return DraftTree(behind_root(tokens.flatten(1).gather(1, order), 0)[:, 1:], topology, num_nodes)


def right_tokens(chains: Tensor, text: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """How many tokens of each chain were right, and how many verification reached: the right ones and the first wrong
    one. ``chains`` and the ``text`` that came instead are ``[R, D]``, as far as both are ``known``."""
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
