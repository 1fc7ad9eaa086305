"""MoA's training losses: the official code's terms and weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.training.losses import feature_loss, masked_mean, token_loss

TOKEN_WEIGHT = 0.1
FEATURE_WEIGHT = 1.0
"""Of one feature loss, or of the mean of both."""


@dataclass(frozen=True)
class Losses:
    """Scalars: cross-entropy against the target's distribution; smooth L1 against the target's last hidden state; and
    with target-layer inference against the residual stream that enters the target's last layers."""

    token: Tensor
    feature: Tensor
    entry: Tensor | None

    def total(self) -> Tensor:
        feature = self.feature if self.entry is None else (self.feature + self.entry) / 2
        return TOKEN_WEIGHT * self.token + FEATURE_WEIGHT * feature

    def terms(self) -> Tensor:
        """``[2 or 3]``: token, feature, entry."""
        found = [self.token, self.feature] + ([] if self.entry is None else [self.entry])
        return torch.stack(found).detach()


def moa_losses(
    final: Tensor, wanted_final: Tensor, head: Tensor, mask: Tensor, entry: tuple[Tensor, Tensor] | None = None
) -> Losses:
    """Means over the positions of ``mask`` ``[B, T]``.

    ``final`` and ``wanted_final`` ``[B, T, E]`` are the drafter's and the target's inputs of ``head`` ``[V, E]``;
    ``entry`` the drafter's and the target's inputs of the target's last layers, if those are used.
    """
    with torch.no_grad():
        probabilities = (wanted_final @ head.T).float().softmax(dim=-1)
    return Losses(
        token=masked_mean(token_loss(final @ head.T, probabilities), mask),
        feature=masked_mean(feature_loss(final, wanted_final), mask),
        entry=None if entry is None else masked_mean(feature_loss(*entry), mask),
    )
