"""GRIFFIN's training losses, and the mask that keeps later passes to contexts that the drafter would draft.

The specification of training's ``head_loss.py``, which gives the same without making all logits at once. ``[B, L]``
positions, ``V`` tokens, ``d`` hidden size. Output ``s`` of the drafter predicts token ``s + 2`` and feature ``s + 1``;
``input_ids[:, s]`` is token ``s + 1``.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.training.head_loss import DISTILLED_TOKENS, MaskShift
from vllm_specext.training.losses import feature_loss


class AlignmentMask:
    """The positions that count in each pass: those whose last tokens were among the drafter's best before."""

    def __init__(
        self,
        input_ids: Tensor,
        base_mask: Tensor,
        top_k: int = 3,
        shift: MaskShift = "code",
        positions: Tensor | None = None,
    ) -> None:
        """``input_ids`` ``[B, L]``; ``base_mask`` ``[B, L]``, 1 where there is something to learn.

        ``positions`` ``[B, L]`` are the places in the rows of text, where several are packed one after the other: the
        mask does not look back across a row's beginning. Without them it wraps at the end of the row, as in the
        published code, so that the first positions depend on the last.
        """
        self.next_ids = input_ids.roll(-1, dims=1)
        self.begins = torch.zeros_like(input_ids, dtype=torch.bool) if positions is None else positions == 0
        self.base_mask = base_mask
        self.top_k = top_k
        self.shift = shift
        self.hits: Tensor | None = None

    def current(self) -> Tensor:
        """The mask ``[B, L]`` for the pass that comes next; the base mask before the first."""
        if self.hits is None:
            return self.base_mask
        hits = self._before(self.hits) if self.shift == "paper" else self.hits
        return hits * self.base_mask

    def update(self, logits: Tensor) -> None:
        """Take in a pass's draft logits ``[B, L, V]``. A hit needs the text's next token among the ``top_k`` best."""
        best = logits.detach().topk(self.top_k, dim=-1).indices
        hits = (best == self.next_ids[..., None]).any(dim=-1).to(self.base_mask.dtype)
        before = torch.ones_like(hits) if self.hits is None else self._before(self.hits)
        self.hits = before * hits

    def _before(self, hits: Tensor) -> Tensor:
        return hits.roll(1, dims=1).masked_fill(self.begins, 1)


@dataclass(frozen=True)
class TargetDistribution:
    """The target's next-token probabilities ``[B, L, V]`` in float32, and its best tokens' ``[B, L, 10]``."""

    probabilities: Tensor
    best_probabilities: Tensor
    best_ids: Tensor

    @classmethod
    def from_logits(cls, logits: Tensor) -> "TargetDistribution":
        probabilities = logits.float().softmax(dim=-1)
        best_probabilities, best_ids = probabilities.topk(min(DISTILLED_TOKENS, logits.shape[-1]), dim=-1)
        return cls(probabilities, best_probabilities, best_ids)


@dataclass(frozen=True)
class GriffinLosses:
    """One pass's loss terms, scalars."""

    feature: Tensor
    token: Tensor
    top_k: Tensor

    def total(self, feature_weight: float, token_weight: float, top_k_weight: float) -> Tensor:
        return feature_weight * self.feature + token_weight * self.token + top_k_weight * self.top_k


def pass_losses(
    regress: Tensor, logits: Tensor, target_features: Tensor, target: TargetDistribution, mask: Tensor
) -> GriffinLosses:
    """Means over the positions of ``mask`` ``[B, L]``.

    ``feature``: smooth L1 between the regress feature and the target's, both ``[B, L, d]``. ``token``: cross-entropy
    of the draft ``logits`` ``[B, L, V]`` against the target's distribution; ``top_k``: the part of it that falls on
    the target's best tokens.
    """
    best_logits = logits.float().gather(-1, target.best_ids)
    best = target.best_probabilities * (logits.float().logsumexp(dim=-1, keepdim=True) - best_logits)
    return GriffinLosses(
        feature=masked_mean(feature_loss(regress, target_features), mask),
        token=masked_mean(token_loss(logits, target.probabilities), mask),
        top_k=masked_mean(best.sum(dim=-1), mask),
    )


def token_loss(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Cross-entropy of draft logits ``[B, L, V]`` against the target's probabilities: ``[B, L]``."""
    logits = logits.float()
    # Σ π·(logits - normaliser), without storing log-probabilities of the whole vocabulary.
    return logits.logsumexp(dim=-1) - torch.einsum("blv,blv->bl", probabilities, logits)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` ``[B, L]`` where ``mask`` ``[B, L]`` is one; zero where nothing counts."""
    mask = mask.float()
    return (mask * values).sum() / (mask.sum() + 1e-5)
