"""EAGLE-2's expansion of draft trees (arXiv 2406.16858, section 4), for a batch of requests at once.

Level by level, every frontier node proposes its ``k`` most likely tokens; the ``k`` best of these ``k²`` candidates by
cumulative log-probability are the next frontier. At the end the best candidates of all levels are the tree. Scores are
float32 and ties go to the earlier candidate: as no log-probability is above 0, a parent then never ranks below its
child. (In half precision, as published, parents and children tie often and a child can be kept without its parent.)
Shapes: ``R`` requests, ``k`` frontier nodes, ``V`` the vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.tree.budget import pool_size
from vllm_specext.tree.topology import Topology, pack


def best_tokens(logits: Tensor, k: int, sharpness: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The ``k`` most likely tokens ``[..., k]`` int64 and their log-probabilities, float32; ``logits`` ``[..., V]``.
    ``sharpness`` ``[...]`` float32 above 0: what a row's logits are multiplied by before they become probabilities, the
    inverse of a temperature; 1 when absent."""
    logits = logits.float()
    best, tokens = logits.topk(k, dim=-1)
    if sharpness is not None:
        logits, best = logits * sharpness[..., None], best * sharpness[..., None]
    log_probs = best - logits.logsumexp(dim=-1, keepdim=True)
    # A drafter that yields NaN drafts badly; its trees are trees all the same.
    return tokens, log_probs.nan_to_num(nan=-torch.inf, neginf=-torch.inf).clamp(max=0)


@dataclass(frozen=True)
class Frontier:
    """The nodes that the next level grows from, each tensor ``[R, k]``, best first."""

    tokens: Tensor
    scores: Tensor
    candidates: Tensor
    """Places of the nodes among all candidates."""
    parents: Tensor
    """Places of the nodes' parents in the previous frontier; 0 at the first level, where the parent is the root."""
    visible: Tensor
    """``[R, k, W]`` int32 words: which of the frontier nodes of all levels so far, in order, are the node or its
    ancestors."""


class Expansion:
    """``tokens``, ``scores`` and ``parents`` ``[R, pool]`` of all candidates: ``k`` of the first level, then ``k²`` of
    each. ``parents`` are places among them, -1 the root. Of levels that have not grown yet they hold nothing."""

    def __init__(self, tokens: Tensor, log_probs: Tensor, levels: int) -> None:
        """``tokens`` and ``log_probs`` ``[R, k]``: the most likely tokens after the root, best first."""
        requests, self.k = tokens.shape
        self.levels = levels
        self.place = torch.arange(self.k, device=tokens.device).expand(requests, -1)
        pool = pool_size(levels, self.k)
        self.tokens, self.parents = (tokens.new_empty(requests, pool) for _ in range(2))
        self.scores = log_probs.new_empty(requests, pool)
        self.grown = 1
        self.frontier = self._plant(tokens, log_probs)

    def grow(self, tokens: Tensor, log_probs: Tensor) -> None:
        """Add the next level: ``tokens`` and ``log_probs`` ``[R, k, k]``, best first, of every frontier node."""
        self.grown += 1
        self.frontier = self._grow(tokens, log_probs, self.frontier)

    def tree(self, nodes: int) -> tuple[Tensor, Topology, Tensor]:
        """Tokens ``[R, nodes]`` and shape of the ``nodes`` best candidates, best first, and how many of them are
        accepted if the probabilities are right, ``[R]`` float32: the sum of those of their paths."""
        return self._tree(nodes)

    @property
    def size(self) -> int:
        """Candidates so far."""
        return pool_size(self.grown, self.k)

    def chain(self, levels: int | None = None) -> Tensor:
        """Tokens ``[R, levels]`` of the path to that level, the last one grown if none is given, that promises most
        accepted tokens: the one with the largest sum of cumulative probabilities."""
        levels = levels or self.grown
        gains = [self.scores[:, self._level(0)].exp()]
        for level in range(1, levels):
            before = gains[-1].gather(1, self._within_level(level))
            gains.append(before + self.scores[:, self._level(level)].exp())
        place = gains[-1].argmax(dim=1, keepdim=True)
        path = []
        for level in range(levels - 1, -1, -1):
            path.append(self.tokens[:, self._level(level)].gather(1, place))
            if level > 0:
                place = self._within_level(level).gather(1, place)
        return torch.cat(path[::-1], dim=1)

    def _plant(self, tokens: Tensor, log_probs: Tensor) -> Frontier:
        """The first level, all of which is its frontier."""
        first = self._level(0)
        self.tokens[:, first], self.scores[:, first], self.parents[:, first] = tokens, log_probs, -1
        return Frontier(tokens, log_probs, self.place, torch.zeros_like(tokens), self._own_bits())

    def _grow(self, tokens: Tensor, log_probs: Tensor, before: Frontier) -> Frontier:
        last = self._level(self.grown - 1)
        tokens, scores = tokens.flatten(1), (before.scores[..., None] + log_probs).flatten(1)
        self.tokens[:, last], self.scores[:, last] = tokens, scores
        self.parents[:, last] = before.candidates.repeat_interleave(self.k, dim=1)
        chosen = _best(scores, self.k)
        parents = chosen // self.k
        inherited = before.visible.gather(1, parents[..., None].expand_as(before.visible))
        return Frontier(
            tokens=tokens.gather(1, chosen),
            scores=scores.gather(1, chosen),
            candidates=last.start + chosen,
            parents=parents,
            visible=inherited | self._own_bits(),
        )

    def _tree(self, nodes: int) -> tuple[Tensor, Topology, Tensor]:
        scores, parents = self.scores[:, : self.size], self.parents[:, : self.size]
        order = _best(scores, self.size)
        kept = order[:, :nodes]
        places = torch.arange(1, self.size + 1, device=order.device).expand_as(order)
        node_of = torch.zeros_like(order).scatter_(1, order, places)
        parent = parents.gather(1, kept)
        # Candidate -1 is the root, node 0.
        parent = torch.where(parent < 0, 0, node_of.gather(1, parent.clamp(min=0)))
        depths = torch.where(kept < self.k, 1, 2 + (kept - self.k) // self.k**2)
        root = parent.new_zeros(parent.shape[0], 1)
        topology = Topology.of(torch.cat((root, parent), dim=1), torch.cat((root, depths), dim=1), self.levels)
        return self.tokens.gather(1, kept), topology, scores.gather(1, kept).exp().sum(dim=1)

    def _level(self, level: int) -> slice:
        """The places of a level's candidates."""
        return slice(pool_size(level, self.k) if level else 0, pool_size(level + 1, self.k))

    def _within_level(self, level: int) -> Tensor:
        """Parents of a level's candidates as places in the level before."""
        return self.parents[:, self._level(level)] - self._level(level - 1).start

    @property
    def _bits(self) -> int:
        """Frontier nodes of all levels but the last, which has no frontier that is run, hence no bits."""
        return max(self.levels - 1, 1) * self.k

    def _own_bits(self) -> Tensor:
        """The bit of each of the latest level's frontier nodes, in words."""
        bit = torch.arange(self._bits, device=self.place.device)
        return pack(bit == ((self.grown - 1) * self.k + self.place)[..., None])


def _best(scores: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` largest along dimension 1, largest first, the earlier one where they tie."""
    return scores.argsort(dim=1, descending=True, stable=True)[:, :count]
