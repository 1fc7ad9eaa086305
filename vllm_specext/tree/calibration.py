"""How far a drafter's probabilities can be trusted, learned from how many of its tokens are accepted.

A draft tree keeps the tokens whose paths have the largest products of probabilities, which are the ones that are most
often accepted only if the probabilities are right. Drafters learn the target's distribution, but a greedy request is
given the most likely token: what such a drafter takes for likely at 0.4 is accepted far more often. Then trees are too
wide and too shallow. So logits are multiplied by a ``sharpness``, the inverse of a temperature (temperature scaling,
arXiv 1706.04599), before they become probabilities. The right one is that with which trees expect as many accepted
tokens as there are: the sum of the probabilities of all their paths.

It depends on the drafter, and on how the target's tokens are drawn, but hardly on the number of nodes. So there is one
for each kind of temperature, for all requests together, and every verification moves it.
"""

import torch
from torch import Tensor

UP_TO = (0.0, 0.4, 0.8)
"""The highest temperature of each kind but the last: greedy requests are a kind of their own."""

FIRST = (1.5, 1.4, 1.2, 1.0)
"""Sharpness of each kind before anything is known: a drafter that knows the target's distribution is right with the
inverse of the temperature, but none knows it so well."""

LEAST, MOST = 0.25, 8.0
"""Bounds of the sharpness. Near the second a tree is little more than its most likely path, with siblings."""

PATIENCE = 10.0
"""Verifications that what is known counts as beside those of a step: one alone moves the sharpness by a tenth of what
its number of tokens was off by."""


class Calibration:
    """Nothing here makes the host wait. Shapes: ``R`` requests, ``K`` kinds of temperatures."""

    def __init__(self, device: torch.device) -> None:
        self._up_to = torch.tensor(UP_TO, device=device)
        self._logarithms = torch.tensor(FIRST, device=device).log()
        self._bounds = torch.tensor((LEAST, MOST)).log().tolist()

    def kinds(self, temperatures: Tensor) -> Tensor:
        """Of ``temperatures`` ``[R]`` float32: ``[R]`` int64."""
        return torch.bucketize(temperatures, self._up_to)

    def learn(self, kinds: Tensor, expected: Tensor, accepted: Tensor, counts: Tensor | None = None) -> None:
        """Take note of verified trees of requests of these ``kinds``: how many tokens each was ``expected`` to have
        accepted and how many were ``accepted``, ``[R]``, and which of them count, ``[R]`` bool; ``None`` for all."""
        off = (accepted - expected) / (1 + expected)
        weights = torch.ones_like(off) if counts is None else counts.to(off.dtype)
        of_kinds = off.new_zeros(2, len(FIRST)).index_add_(1, kinds, torch.stack((off * weights, weights)))
        self._logarithms += of_kinds[0] / (PATIENCE + of_kinds[1])
        self._logarithms.clamp_(*self._bounds)

    def sharpness(self, kinds: Tensor) -> Tensor:
        """``[R]`` float32."""
        return self._logarithms[kinds].exp()
