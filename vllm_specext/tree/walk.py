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
    rows, inside = _rows(cu_num_logits, width, drawn.shape[0])
    emitted = drawn[rows]
    continues = inside[:, 1:] & (drafted[rows[:, 1:]] == emitted[:, :-1])
    num_sampled = 1 + continues.int().cumprod(dim=1).sum(dim=1)
    return emitted, num_sampled.to(torch.int32)


def accept_tree(
    drawn: Tensor, drafted: Tensor, cu_num_logits: Tensor, parents: Tensor, levels: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Walk each request's tree, whose nodes are the request's rows: from the root to the child that holds the token
    drawn, while there is one, at most ``levels`` steps.

    Arguments as for ``accept_chain``, and the trees' ``parents`` ``[R, N + 1]`` int64, as ``Topology`` has them; a
    request may have rows for a prefix of its tree only. Returns emitted tokens ``[R, levels + 1]``, ``num_sampled``
    ``[R]`` int32, and the ``path`` ``[R, levels + 1]`` int64 of accepted nodes, root first, with 0 from
    ``num_sampled`` on.
    """
    rows, inside = _rows(cu_num_logits, parents.shape[1], drawn.shape[0])
    drawn, drafted = drawn[rows], drafted[rows]
    confirmed = inside & (drafted == drawn.gather(1, parents))
    confirmed[:, 0] = True
    accepted = torch.zeros_like(confirmed)
    accepted[:, 0] = True
    steps_left = accepted.long()
    for _ in range(levels):
        accepted = confirmed & accepted.gather(1, parents)
        steps_left += accepted
    # Siblings hold distinct tokens, so that at most one node per depth is accepted; the others meet in the last column.
    place = levels + 1 - steps_left
    nodes = torch.arange(parents.shape[1], device=parents.device).expand_as(parents)
    path = nodes.new_zeros(parents.shape[0], levels + 2).scatter_(1, place, nodes)[:, :-1]
    return drawn.gather(1, path), accepted.sum(dim=1).to(torch.int32), path


def _rows(cu_num_logits: Tensor, width: int, count: int) -> tuple[Tensor, Tensor]:
    """Rows ``[R, width]`` of each request, and which of them are its own."""
    start, end = cu_num_logits[:-1, None], cu_num_logits[1:, None]
    rows = start + torch.arange(width, device=cu_num_logits.device)
    return rows.clamp(max=count - 1), rows < end
