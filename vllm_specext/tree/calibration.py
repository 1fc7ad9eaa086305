"""How far a drafter's probabilities can be trusted, learned from how many of its tokens are accepted.

A draft tree keeps the tokens whose paths have the largest products of probabilities, which are the ones that are most
often accepted only if the probabilities are right. Drafters learn the target's distribution, but a greedy request is
given the most likely token: what such a drafter takes for likely at 0.4 is accepted far more often. Then trees are too
wide and too shallow. So logits are multiplied by a sharpness, the inverse of a temperature (temperature scaling,
arXiv 1706.04599), before they become probabilities. The right one is that with which trees expect as many accepted
tokens as there are: the sum of the probabilities of all their paths.

It depends on the drafter, and on how the target's tokens are drawn, but hardly on the number of nodes. So there is one
for each kind of temperature, for all requests together, and every verification moves it.
Shapes: ``R`` requests, of which the first ``V`` have verified a draft, ``S`` request slots, ``K`` kinds of
temperatures.
"""

from dataclasses import dataclass
from math import log

import torch
from torch import Tensor

UP_TO = (0.0, 0.4, 0.8)
"""The highest temperature of each kind but the last: greedy requests are a kind of their own."""

FIRST = (1.5, 1.4, 1.2, 1.0)
"""Sharpness of each kind before anything is known: a drafter that knows the target's distribution is right with the
inverse of the temperature, but none knows it so well."""

LEAST, MOST = log(0.25), log(8.0)
"""Bounds of the sharpness's logarithm. Near the second a tree is little more than its most likely path."""

PATIENCE = 10.0
"""Verifications that what is known counts as beside those of a step: one alone moves the sharpness by a tenth of what
its number of tokens was off by."""


@dataclass(frozen=True)
class Learned:
    """What is known so far, on the device."""

    logarithms: Tensor
    """Of the sharpness of each kind, ``[K]`` float32; changed in place."""
    up_to: Tensor
    """``UP_TO``, ``[K - 1]`` float32."""

    @classmethod
    def nothing(cls, device: torch.device | str) -> "Learned":
        return cls(torch.tensor(FIRST, device=device).log(), torch.tensor(UP_TO, device=device))


def calibrate(
    learned: Learned,
    slots: Tensor,
    temperatures: Tensor,
    expected: Tensor,
    num_sampled: Tensor,
    verified: int,
    counts: Tensor | None = None,
) -> Tensor:
    """Learn from a step, and return the sharpness for its requests, ``[R]`` float32. ``slots`` ``[R]`` are theirs,
    ``temperatures`` ``[S]`` float32 and ``expected`` ``[S]`` float32, how many tokens of the tree of each slot were
    expected to be accepted, are by slot; ``num_sampled`` ``[R]`` is one more than were. ``verified``: ``V``; of these
    only the trees count that ``counts`` ``[V]`` uint8 names, or all. The host does not wait."""
    kinds = torch.bucketize(temperatures[slots], learned.up_to)
    expected = expected[slots[:verified]]
    off = (num_sampled[:verified] - 1 - expected) / (1 + expected)
    # Not by adding at indices, where a GPU's order is chance: all ranks have to draft the same.
    is_of = kinds[:verified, None] == torch.arange(len(learned.logarithms), device=kinds.device)
    if counts is not None:
        is_of &= counts[:, None] != 0
    moved = torch.where(is_of, off[:, None], 0.0).sum(dim=0)
    learned.logarithms.add_(moved / (PATIENCE + is_of.sum(dim=0))).clamp_(LEAST, MOST)
    return learned.logarithms[kinds].exp()
