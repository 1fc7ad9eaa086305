"""MoA's training losses: the official code's terms and weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.training.head_loss import HeadWeights, head_losses
from vllm_specext.training.logits import PLAIN, Logits, Scored
from vllm_specext.training.losses import feature_loss
from vllm_specext.training.step import Sums

TOKEN_WEIGHT = 0.1
FEATURE_WEIGHT = 1.0
"""The weight of the one feature loss, or of the mean of both."""


@dataclass(frozen=True)
class MoALosses:
    """Scalar sums over ``count`` positions: cross-entropy against the target's distribution; smooth L1 against the
    target's last hidden state; and with target-layer inference against the residual stream that enters the target's
    last layers."""

    token: Tensor
    feature: Tensor
    entry: Tensor | None
    count: Tensor

    def total(self) -> Tensor:
        feature = self.feature if self.entry is None else (self.feature + self.entry) / 2
        return TOKEN_WEIGHT * self.token + FEATURE_WEIGHT * feature

    def sums(self) -> Sums:
        """With the losses that there are as terms, by name."""
        terms = {"token": self.token, "feature": self.feature}
        terms |= {} if self.entry is None else {"entry": self.entry}
        return Sums(self.total(), self.count, {name: (term.detach(), self.count) for name, term in terms.items()})


def moa_losses(
    final: Tensor,
    wanted_final: Tensor,
    head: Tensor,
    mask: Tensor,
    entry: tuple[Tensor, Tensor] | None = None,
    logits: Logits = PLAIN,
) -> MoALosses:
    """Sums over the positions of ``mask`` ``[B, T]``.

    ``final`` and ``wanted_final`` ``[B, T, E]`` are the drafter's and the target's inputs of ``head`` ``[V, E]``, of
    which the target and a server make ``logits``; ``entry`` the drafter's and the target's inputs of the target's last
    layers, if those are used.
    """
    on_head = head_losses(head, [final], wanted_final, mask, HeadWeights(), scored=Scored(logits, logits))
    return MoALosses(
        token=on_head.loss[0],
        feature=(feature_loss(final, wanted_final) * mask).sum(),
        entry=None if entry is None else (feature_loss(*entry) * mask).sum(),
        count=torch.count_nonzero(mask),
    )
