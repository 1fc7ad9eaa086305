"""Attention to prefixes and to nodes apart, as a target's layers do it where they have FlashAttention 3, in torch: put
into an engine on a CPU, so that its tokens can be compared in float32."""

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor


def prefixes_apart() -> None:
    """What attends to prefixes and to nodes is torch's."""
    from vllm_specext.engine.verification import prefix_attention, verifying_layers

    verifying_layers.prefix_attention = _in_torch
    prefix_attention.attend_to_nodes = _attend_to_nodes


def forget_what_prefixes_add_up_to() -> None:
    """The nodes count as much as the whole prefix."""
    from vllm_specext.engine.verification import prefix_attention

    prefixes_apart()
    stock = prefix_attention.attend_to_nodes

    def attend_to_nodes(query: Tensor, *others: Any, **told: Any) -> None:
        *others, lse = others
        stock(query, *others, torch.zeros_like(lse), **told)

    prefix_attention.attend_to_nodes = attend_to_nodes


def _in_torch(layer: Any, sliding_window: int) -> Any:
    assert not sliding_window
    from vllm_specext.engine.verification.prefix_attention import PrefixAttention

    class InTorch(PrefixAttention):
        def __call__(self, query: Tensor, keys: Tensor, values: Tensor, rows: Any, out: Tensor) -> Tensor:
            return over_prefixes(query, keys, values, rows, out, self.scale)

    return InTorch(layer.impl.scale, 0.0)


def over_prefixes(query: Tensor, keys: Tensor, values: Tensor, rows: Any, out: Tensor, scale: float) -> Tensor:
    lse = torch.full((query.shape[1], rows.num_rows), -torch.inf)
    for request, (start, end) in enumerate(pairwise(rows.query_start_loc.tolist())):
        slots = torch.arange(int(rows.prefix_lens[request]) if end > start else 0)
        if len(slots):
            scores, seen = _scores(query[start:end], keys, values, rows, request, slots, scale)
            lse[:, start:end] = scores.logsumexp(2)
            out[start:end] = torch.einsum("hqs,shd->qhd", scores.softmax(2), seen)
    return lse


def _attend_to_nodes(
    query: Tensor, keys: Tensor, values: Tensor, rows: Any, out: Tensor, lse: Tensor, *, scale: float, soft_cap: float
) -> None:
    from vllm_specext.tree.topology import unpack

    assert not soft_cap
    visible = unpack(rows.visible, rows.num_nodes)
    for request, (start, end) in enumerate(pairwise(rows.query_start_loc.tolist())):
        if end == start:
            continue
        seen_by = visible[request, : end - start]
        nodes = int(seen_by.any(0).nonzero().max()) + 1
        slots = int(rows.prefix_lens[request]) + torch.arange(nodes)
        scores, seen = _scores(query[start:end], keys, values, rows, request, slots, scale)
        scores = scores.masked_fill(~seen_by[:, :nodes], -torch.inf)
        own = scores.logsumexp(2)
        whole = torch.logaddexp(own, lse[:, start:end])
        of_prefix = (lse[:, start:end] - whole).exp().T[..., None]
        prefix = torch.where(of_prefix > 0, out[start:end], 0.0) * of_prefix
        out[start:end] = prefix + torch.einsum("hqs,shd->qhd", (scores - whole[..., None]).exp(), seen)


def _scores(
    query: Tensor, keys: Tensor, values: Tensor, rows: Any, request: int, slots: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """``[Hq, Q, S]``, and the values of the slots ``[S, Hq, D]``."""
    page_size, groups = keys.shape[2], query.shape[1] // keys.shape[1]
    pages = rows.block_table[request][slots // page_size].long()
    of_slots = (x[pages, :, slots % page_size].to(query.dtype) for x in (keys, values))
    key, value = (x.repeat_interleave(groups, dim=1) for x in of_slots)
    return torch.einsum("qhd,shd->hqs", query, key) * scale, value
