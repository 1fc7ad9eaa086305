"""Greedy chains of a drafter that reads its own features, drafted at all positions of a text at once.

A query attends to shared keys, made from what the target leaves, and to a few keys of its own, made from the drafter's
own features, so that one pass over a sequence stands for a drafting step at each of its positions.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from vllm_specext.methods.layers import KV, Attention
from vllm_specext.training.own_keys import attend

TOGETHER = 1024
"""Positions whose scores over the vocabulary live at the same time."""


def greedy_chains(
    attention: Attention,
    read: Callable[[Tensor, Tensor, Tensor], Tensor],
    finish: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]],
    head: Tensor,
    token_ids: Tensor,
    features: Tensor,
    length: int,
    tokens: Tensor | None = None,
) -> Tensor:
    """The greedy chain of ``length`` tokens that would be drafted after each input: ``[B, L, length]``.

    Input ``s`` pairs ``features[:, s]`` ``[B, L, d]`` with ``token_ids[:, s]``, the token after it; entry ``[:, s, 0]``
    is the drafter's proposal for the token after that. ``read`` makes what ``attention`` reads of features, tokens
    and their places; ``finish`` makes, of features, what was read, and the attention's output, the input of ``head``
    ``[V, d]`` and the features of the next step. ``tokens`` ``[V]`` are those of the head's rows, where they are not
    simply numbered.
    """
    position_ids = torch.arange(token_ids.shape[1], device=token_ids.device)[None]
    causal = position_ids <= position_ids.T
    shared: KV | None = None
    own: list[KV] = []
    drafts: list[Tensor] = []
    for step in range(length):
        places = position_ids + step
        hidden = read(features, token_ids, places)
        kv = attention.keys_values(hidden, places)
        if shared is None:
            shared = kv
        else:
            own.append(kv)
        queries = attention.queries(hidden, places)
        predict, features = finish(features, hidden, attend(attention, queries, shared, causal, own))
        token_ids = most_likely(predict, head)
        if tokens is not None:
            token_ids = tokens[token_ids]
        drafts.append(token_ids)
    return torch.stack(drafts, dim=-1)


def most_likely(features: Tensor, head: Tensor) -> Tensor:
    """The most likely token ``[B, L]`` after ``features`` ``[B, L, d]``, by ``head`` ``[V, d]``."""
    return torch.cat([(some @ head.T).argmax(dim=-1) for some in features.split(TOGETHER, dim=1)], dim=1)
