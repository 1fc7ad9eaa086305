"""Attention in which a query sees keys of a whole sequence and a few that are its own.

Own keys take part as extra columns of the score matrix, so that one pass over a sequence stands for a drafting step at
each of its positions. Simulated chains use it, and training's ``packed_attention.py`` is tested against it. Shapes:
``[B, H, L, D]`` heads.
"""

import torch
from torch import Tensor

from vllm_specext.methods.layers import KV, Attention

TOGETHER = 512
"""Queries whose scores live at the same time: those of all would outgrow a GPU at long sequences."""


def attend(
    attention: Attention,
    queries: Tensor,
    shared: KV,
    shared_mask: Tensor,
    own: list[KV],
    own_mask: Tensor | None = None,
    zero_score: Tensor | None = None,
) -> Tensor:
    """Attention over ``S`` shared keys and over one own key per query and entry of ``own``.

    ``queries`` ``[B, H, L, D]``; ``shared_mask`` ``[L, S]`` and ``own_mask`` ``[L, len(own)]`` are true where a query
    may attend; where ``zero_score`` ``[L, S]`` is true a score of zero enters the softmax and its weight is dropped.
    """
    if own_mask is None:
        own_mask = shared_mask.new_ones(queries.shape[2], len(own))
    keys, values = map(attention.repeat, shared)
    repeated = [(attention.repeat(own_keys), attention.repeat(own_values)) for own_keys, own_values in own]
    heads = []
    for first in range(0, queries.shape[2], TOGETHER):
        part = slice(first, first + TOGETHER)
        scores = [queries[:, :, part] @ keys.transpose(2, 3)]
        scores += [(queries[:, :, part] * each[:, :, part]).sum(dim=-1, keepdim=True) for each, _ in repeated]
        logits = (torch.cat(scores, dim=-1) / attention.head_dim**0.5).float()
        allowed = torch.cat((shared_mask[part], own_mask[part]), dim=1)
        logits = logits.masked_fill(~allowed, float("-inf"))
        if zero_score is None:
            weights = logits.softmax(dim=-1)
        else:
            dropped = torch.cat((zero_score[part], torch.zeros_like(own_mask[part])), dim=1)
            weights = logits.masked_fill(dropped, 0.0).softmax(dim=-1).masked_fill(dropped, 0.0)
        weights = weights.to(values.dtype)
        attended = weights[..., : keys.shape[2]] @ values
        for column, (_, each) in enumerate(repeated, start=keys.shape[2]):
            attended = attended + weights[..., column : column + 1] * each[:, :, part]
        heads.append(attended)
    return attention.merge(torch.cat(heads, dim=2))
