"""The verification walk: which drafted tokens the target's own draws confirm."""

import torch
from torch import Tensor


def accept_chain(drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Walk each request's chain.

    ``drawn`` and ``drafted`` ``[rows]``: the target's draw at each row, and the token that is the row's input; a
    request's first row is its last sampled token, the others are drafted tokens, -1 where a draft must not be accepted.
    ``cu_num_logits`` ``[R + 1]``: first row of each request. ``width``: most rows a request can have. Returns emitted
    tokens ``[R, width]``, of which the first ``num_sampled`` ``[R]`` int32 count.
    """
    start, end = cu_num_logits[:-1, None], cu_num_logits[1:, None]
    rows = start + torch.arange(width, device=drawn.device)
    inside = rows < end
    rows = rows.clamp(max=drawn.shape[0] - 1)
    emitted = drawn[rows]
    continues = inside[:, 1:] & (drafted[rows[:, 1:]] == emitted[:, :-1])
    num_sampled = 1 + continues.int().cumprod(dim=1).sum(dim=1)
    return emitted, num_sampled.to(torch.int32)
