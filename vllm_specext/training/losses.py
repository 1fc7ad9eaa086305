"""Losses of drafters at single positions, and their mean over those that count. ``[B, L]`` positions, ``V`` tokens."""

import torch
from torch import Tensor
from torch.nn import functional as F


def feature_loss(features: Tensor, wanted: Tensor) -> Tensor:
    """Smooth L1 of ``[B, L, d]``, mean over the numbers of a feature: ``[B, L]``."""
    return F.smooth_l1_loss(features.float(), wanted.float(), reduction="none").mean(dim=-1)


def token_loss(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Cross-entropy of draft logits ``[B, L, V]`` against the target's probabilities: ``[B, L]``."""
    logits = logits.float()
    # Σ π·(logits - normaliser), without storing log-probabilities of the whole vocabulary.
    return logits.logsumexp(dim=-1) - torch.einsum("blv,blv->bl", probabilities, logits)


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of ``values`` ``[B, L]`` where ``mask`` ``[B, L]`` is one; zero where nothing counts."""
    mask = mask.float()
    return (mask * values).sum() / (mask.sum() + 1e-5)
