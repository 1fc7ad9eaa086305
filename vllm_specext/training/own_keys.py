"""Attention in which a query sees keys of a whole sequence and a few that are its own.

Own keys take part as extra columns of the score matrix, so that one pass over a sequence stands for a drafting step at
each of its positions. All scores live at once: simulated chains use it, and training's ``packed_attention.py`` is
tested against it. Shapes: ``[B, H, L, D]`` heads.
"""

import torch
from torch import Tensor

from vllm_specext.methods.layers import KV, Attention


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
    length = shared[0].shape[2]
    scores = [queries @ attention.repeat(shared[0]).transpose(2, 3)]
    scores += [(queries * attention.repeat(keys)).sum(dim=-1, keepdim=True) for keys, _ in own]
    if own_mask is None:
        own_mask = shared_mask.new_ones(queries.shape[2], len(own))
    allowed = torch.cat((shared_mask, own_mask), dim=1)
    logits = (torch.cat(scores, dim=-1) / attention.head_dim**0.5).float().masked_fill(~allowed, float("-inf"))
    if zero_score is not None:
        zero_score = torch.cat((zero_score, torch.zeros_like(own_mask)), dim=1)
        logits = logits.masked_fill(zero_score, 0.0)
    weights = logits.softmax(dim=-1)
    if zero_score is not None:
        weights = weights.masked_fill(zero_score, 0.0)
    weights = weights.to(shared[1].dtype)
    heads = weights[..., :length] @ attention.repeat(shared[1])
    for column, (_, values) in enumerate(own, start=length):
        heads = heads + weights[..., column : column + 1] * attention.repeat(values)
    return attention.merge(heads)
