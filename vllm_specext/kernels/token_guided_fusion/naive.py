"""Token-guided fusion in torch, with matrix products of the vendor's library: rounds to the dtype of the weights after
every step, as the drafter of separate layers does."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class FusionWeights(NamedTuple):
    """``d`` hidden size, ``i`` width of the MLP; all of one dtype, rows contiguous.

    Under tensor parallelism ``up`` holds a rank's rows and ``down`` the same columns; the others are whole.
    """

    fc: Tensor
    """``[d, 2 d]``: columns of the embedding, then of the feature."""
    fc_bias: Tensor
    """``[d]``."""
    post_norm: Tensor
    input_norm: Tensor
    """``[d]`` each: the hidden state passes both in turn, the embedding the second."""
    up: Tensor
    """``[i, 2 d]``: columns of the hidden state, then of the embedding."""
    down: Tensor
    """``[d, i]``."""


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Statistics in float32; rounded before the multiplication with ``weight`` and after it."""
    x32 = x.float()
    return weight * (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps)).to(x.dtype)


def token_guided_fusion(
    features: Tensor, embeddings: Tensor, token_ids: Tensor | None, weights: FusionWeights, eps: float, residual: bool
) -> tuple[Tensor, Tensor]:
    if token_ids is not None:
        embeddings = F.embedding(token_ids, embeddings)
    hidden = F.linear(torch.cat((embeddings, features), dim=-1), weights.fc, weights.fc_bias)
    # The released weights expect the hidden state to be normalised twice, the second time as the embeddings are.
    twice = rms_norm(rms_norm(hidden, weights.post_norm, eps), weights.input_norm, eps)
    both = torch.cat((twice, rms_norm(embeddings, weights.input_norm, eps)), dim=-1)
    mlp = F.linear(F.silu(F.linear(both, weights.up)), weights.down)
    return hidden, hidden + mlp if residual else mlp
