"""MoA's training losses: the official code's terms and weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.training.losses import feature_loss, masked_mean, token_loss

TOKEN_WEIGHT = 0.1
FEATURE_WEIGHT = 1.0
"""The weight of the one feature loss, or of the mean of both."""


@dataclass(frozen=True)
class MoALosses:
    """Scalars: cross-entropy against the target's distribution; smooth L1 against the target's last hidden state; and
    with target-layer inference against the residual stream that enters the target's last layers."""

    token: Tensor
    feature: Tensor
    entry: Tensor | None

    def total(self) -> Tensor:
        feature = self.feature if self.entry is None else (self.feature + self.entry) / 2
        return TOKEN_WEIGHT * self.token + FEATURE_WEIGHT * feature

    def terms(self) -> dict[str, Tensor]:
        """The losses that there are, by name, without their gradients."""
        entry = {} if self.entry is None else {"entry": self.entry.detach()}
        return {"token": self.token.detach(), "feature": self.feature.detach(), **entry}


def moa_losses(
    final: Tensor, wanted_final: Tensor, head: Tensor, mask: Tensor, entry: tuple[Tensor, Tensor] | None = None
) -> MoALosses:
    """Means over the positions of ``mask`` ``[B, T]``.

    ``final`` and ``wanted_final`` ``[B, T, E]`` are the drafter's and the target's inputs of ``head`` ``[V, E]``;
    ``entry`` the drafter's and the target's inputs of the target's last layers, if those are used.
    """
    with torch.no_grad():
        probabilities = (wanted_final @ head.T).float().softmax(dim=-1)
    return MoALosses(
        token=masked_mean(token_loss(final @ head.T, probabilities), mask),
        feature=masked_mean(feature_loss(final, wanted_final), mask),
        entry=None if entry is None else masked_mean(feature_loss(*entry), mask),
    )
