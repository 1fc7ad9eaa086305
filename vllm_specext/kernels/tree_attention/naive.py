"""Tree attention in torch: gathers every slot of the longest request, so its cost is that of the padded batch.

``S`` slots of the longest request, ``Q`` rows of the widest, ``G`` query heads for each of the ``Hkv`` heads of the
cache.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.tree.topology import unpack


@dataclass(frozen=True)
class TreeRows:
    """The query rows of a batch of ``R`` requests: the first ``num_rows`` rows of the query."""

    block_table: Tensor
    """``[R, blocks]`` int32."""
    query_start_loc: Tensor
    """``[R + 1]`` int32."""
    prefix_lens: Tensor
    """``[R]``: cache slots before the tree's first."""
    visible: Tensor
    """``[R, Q, W]`` int32 words: the tree nodes, by slot after the prefix, that each query row sees."""
    num_rows: int
    max_query_len: int
    num_nodes: int
    """Number of slots after the prefix that any bit may name."""
    max_seq_len: int
    """Upper bound of prefix and tree together."""

    @cached_property
    def plan(self) -> Plan:
        """Indices and mask, the same for all layers of a step that have the same pages."""
        return plan(self)

    @cached_property
    def shared(self) -> dict[Any, Any]:
        return {}  # what layers of the step have in common


@dataclass(frozen=True)
class Slots:
    """The slots that the rows of each request read and see, for one page size and one sliding window."""

    page: Tensor
    place: Tensor
    """``[R, 1, S]``: page of each slot, and where it is in there."""
    visible: Tensor
    """``[R, 1, G Q, S]`` bool: every head's rows, one head after the other."""


@dataclass(frozen=True)
class Plan:
    padded: Tensor
    """``[R, Q]``: query row of each padded row."""
    own: Tensor
    """``[R, Q]`` bool: padded rows that are rows of the request."""
    request: Tensor
    offset: Tensor
    """``[num_rows]``: where each query row is among the padded ones."""
    block_table: Tensor
    seen: Tensor
    """``[R, Q, nodes]`` bool."""
    prefix_lens: Tensor
    max_seq_len: int
    _slots: dict[tuple[int, int, int], Slots] = field(default_factory=dict)

    def slots(self, page_size: int, groups: int, sliding_window: int) -> Slots:
        """The slots for layers of one kind, worked out for the first of them."""
        key = page_size, groups, sliding_window
        if key not in self._slots:
            self._slots[key] = self._lay_out(*key)
        return self._slots[key]

    def _lay_out(self, page_size: int, groups: int, sliding_window: int) -> Slots:
        count = min(self.max_seq_len, self.block_table.shape[1] * page_size)
        slot = torch.arange(count, device=self.seen.device)
        offset = slot - self.prefix_lens[:, None]
        nodes = self.seen.shape[2]
        node = offset.clamp(0, nodes - 1)[:, None].expand(-1, self.seen.shape[1], -1)
        in_tree = self.seen.gather(2, node) & ((offset >= 0) & (offset < nodes))[:, None]
        in_prefix = (offset < 0)[:, None]
        if sliding_window:
            depth = self.seen.sum(dim=2, keepdim=True) - 1
            in_prefix = in_prefix & (depth - offset[:, None] < sliding_window)
        visible = (in_tree | in_prefix) & self.own[..., None]
        # What nobody sees may be NaN, which a weight of 0 does not cancel: the first slot that is seen is read instead.
        read = visible.any(dim=1)
        slot = torch.where(read, slot, read.int().argmax(dim=1, keepdim=True))
        page = self.block_table.gather(1, slot // page_size).long()
        return Slots(page[:, None], (slot % page_size)[:, None], visible.repeat(1, groups, 1)[:, None])


def plan(rows: TreeRows) -> Plan:
    start, end = rows.query_start_loc[:-1].long(), rows.query_start_loc[1:].long()
    within = torch.arange(rows.max_query_len, device=start.device)
    query_row = torch.arange(rows.num_rows, device=start.device)
    request = torch.searchsorted(end, query_row, right=True).clamp(max=len(end) - 1)
    padded = start[:, None] + within
    return Plan(
        padded=padded.clamp(max=rows.num_rows - 1),
        own=padded < end[:, None],
        request=request,
        offset=query_row - start[request],
        block_table=rows.block_table,
        seen=unpack(rows.visible, rows.num_nodes),
        prefix_lens=rows.prefix_lens,
        max_seq_len=rows.max_seq_len,
    )


def tree_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    plan: Plan,
    out: Tensor,
    *,
    scale: float,
    soft_cap: float,
    sliding_window: int,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    kv_heads, page_size = key_cache.shape[1:3]
    groups, width = query.shape[1] // kv_heads, plan.padded.shape[1]
    slots = plan.slots(page_size, groups, sliding_window)
    head = torch.arange(kv_heads, device=query.device)[:, None]
    keys = _gathered(key_cache, slots.page, head, slots.place)
    if (width_of_value := value_cache.shape[-1]) < keys.shape[-1]:
        values = keys[..., :width_of_value]
    else:
        values = _gathered(value_cache, slots.page, head, slots.place)
    # The heads that share keys become rows of one head, so that keys and values are not copied for each.
    queries = query[plan.padded].unflatten(2, (kv_heads, groups)).permute(0, 2, 3, 1, 4).flatten(2, 3)
    if soft_cap or keys.dtype.itemsize == 1 or sinks is not None:
        scores = (queries.float() @ keys.float().transpose(2, 3)) * scale
        for factor in (q_scale, k_scale):
            if factor is not None:
                scores *= factor.view(-1, 1, 1)
        if soft_cap:
            scores = soft_cap * torch.tanh(scores / soft_cap)
        scores = scores.masked_fill(~slots.visible, -torch.inf)
        if sinks is not None:
            sink = sinks.float().view(1, kv_heads, groups).repeat_interleave(width, dim=2)[..., None]
            scores = torch.cat((scores, sink.expand(len(scores), -1, -1, -1)), dim=-1)
        weights = scores.softmax(dim=-1)[..., : slots.visible.shape[-1]]
        attended = weights @ values.float()
        if v_scale is not None:
            attended *= v_scale.view(-1, 1, 1)
    else:
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=slots.visible, scale=scale)
    rows = attended.unflatten(2, (groups, width)).permute(0, 3, 1, 2, 4)[plan.request, plan.offset]
    out[: len(plan.request)] = rows.flatten(1, 2).to(out.dtype)


def _gathered(cache: Tensor, page: Tensor, head: Tensor, place: Tensor) -> Tensor:
    if cache.dtype.itemsize > 1:
        return cache[page, head, place]
    return cache.view(torch.uint8)[page, head, place].view(cache.dtype)  # float8 cannot be indexed everywhere
