"""EAGLE-2's expansion of draft trees (arXiv 2406.16858, section 4), for a batch of requests at once.

Level by level, every frontier node proposes its ``k`` most likely tokens; the ``k`` best of these ``k²`` candidates by
cumulative log-probability are the next frontier. At the end the best candidates of all levels are the tree. Scores are
float32 and ties go to the earlier candidate: as no log-probability is above 0, a parent then never ranks behind its
child. (In half precision, as published, parents and children tie often and a child can be kept without its parent.)
Shapes: ``R`` requests, ``k`` frontier nodes, ``V`` the vocabulary.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.tree.topology import Topology, pack


def best_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The ``k`` most likely tokens ``[..., k]`` int64 and their log-probabilities, float32; ``logits`` ``[..., V]``."""
    logits = logits.float()
    best, tokens = logits.topk(k, dim=-1)
    log_probs = best - logits.logsumexp(dim=-1, keepdim=True)
    # A drafter that yields NaN drafts badly; its trees are trees all the same.
    return tokens, log_probs.nan_to_num(nan=-torch.inf, neginf=-torch.inf).clamp(max=0)


@dataclass(frozen=True)
class Frontier:
    """The nodes that the next level grows from, each tensor ``[R, k]``, best first."""

    tokens: Tensor
    scores: Tensor
    candidates: Tensor
    """Their place among all candidates."""
    parents: Tensor
    """Their parents' place in the previous frontier; 0 at the first level, where the parent is the root."""
    visible: Tensor
    """``[R, k, W]`` int32 words: which of the frontier nodes of all levels so far, in order, are the node or its
    ancestors."""


class Expansion:
    def __init__(self, tokens: Tensor, log_probs: Tensor, levels: int) -> None:
        """``tokens`` and ``log_probs`` ``[R, k]``: the most likely tokens after the root, best first."""
        requests, self.k = tokens.shape
        self.levels = levels
        device = tokens.device
        self.place = torch.arange(self.k, device=device).expand(requests, -1)
        self.tokens = [tokens]
        self.scores = [log_probs]
        self.parents = [torch.full_like(tokens, -1)]
        self.frontier = Frontier(tokens, log_probs, self.place, torch.zeros_like(tokens), self._own_bits(0))

    def grow(self, tokens: Tensor, log_probs: Tensor) -> None:
        """Add the next level: ``tokens`` and ``log_probs`` ``[R, k, k]``, best first, of every frontier node."""
        before = self.frontier
        scores = (before.scores[..., None] + log_probs).flatten(1)
        tokens = tokens.flatten(1)
        first = sum(level.shape[1] for level in self.tokens)
        self.tokens.append(tokens)
        self.scores.append(scores)
        self.parents.append(before.candidates.repeat_interleave(self.k, dim=1))
        chosen = _best(scores, self.k)
        parents = chosen // self.k
        inherited = before.visible.gather(1, parents[..., None].expand_as(before.visible))
        self.frontier = Frontier(
            tokens=tokens.gather(1, chosen),
            scores=scores.gather(1, chosen),
            candidates=first + chosen,
            parents=parents,
            visible=inherited | self._own_bits(len(self.tokens) - 1),
        )

    def tree(self, nodes: int) -> tuple[Tensor, Topology]:
        """Tokens ``[R, nodes]`` and shape of the ``nodes`` best candidates, best first."""
        scores, parents = torch.cat(self.scores, dim=1), torch.cat(self.parents, dim=1)
        order = _best(scores, scores.shape[1])
        kept = order[:, :nodes]
        places = torch.arange(1, order.shape[1] + 1, device=order.device).expand_as(order)
        node_of = torch.zeros_like(order).scatter_(1, order, places)
        parent = parents.gather(1, kept)
        # Candidate -1 is the root, node 0.
        parent = torch.where(parent < 0, 0, node_of.gather(1, parent.clamp(min=0)))
        depths = torch.cat([torch.full_like(s, level + 1, dtype=torch.int64) for level, s in enumerate(self.scores)], 1)
        root = parent.new_zeros(parent.shape[0], 1)
        topology = Topology.of(
            torch.cat((root, parent), dim=1), torch.cat((root, depths.gather(1, kept)), dim=1), self.levels
        )
        return torch.cat(self.tokens, dim=1).gather(1, kept), topology

    def chain(self) -> Tensor:
        """Tokens ``[R, levels grown]`` of the path to the last level that promises most accepted tokens: the one with
        the largest sum of cumulative probabilities."""
        gain = self.scores[0].exp()
        gains = [gain]
        for level in range(1, len(self.scores)):
            before = gains[-1].gather(1, self._within_level(level))
            gains.append(before + self.scores[level].exp())
        place = gains[-1].argmax(dim=1, keepdim=True)
        path = []
        for level in range(len(self.tokens) - 1, -1, -1):
            path.append(self.tokens[level].gather(1, place))
            if level > 0:
                place = self._within_level(level).gather(1, place)
        return torch.cat(path[::-1], dim=1)

    def _within_level(self, level: int) -> Tensor:
        """Parents of a level's candidates as places in the level before."""
        return self.parents[level] - sum(earlier.shape[1] for earlier in self.tokens[: level - 1])

    def _own_bits(self, level: int) -> Tensor:
        """The last level has no frontier that is run, hence no bits."""
        slots = max(self.levels - 1, 1) * self.k
        own = torch.arange(slots, device=self.place.device) == (level * self.k + self.place)[..., None]
        return pack(own)


def _best(scores: Tensor, count: int) -> Tensor:
    """Indices of the ``count`` largest along dimension 1, largest first, the earlier one where they tie."""
    return scores.argsort(dim=1, descending=True, stable=True)[:, :count]
