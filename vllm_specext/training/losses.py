"""Losses of drafters at single positions. ``[B, L]`` positions."""

from torch import Tensor
from torch.nn import functional as F


def feature_loss(features: Tensor, wanted: Tensor) -> Tensor:
    """Smooth L1 of ``[B, L, d]``, mean over the numbers of a feature: ``[B, L]``."""
    return F.smooth_l1_loss(features.float(), wanted.float(), reduction="none").mean(dim=-1)
