"""Tree attention in Triton: one pass over a request's keys for all its rows and all heads that share the keys.

The rows of a request times the ``G`` query heads of a head of the cache are the M dimension of the products, so that a
tile of keys and values is read once for up to ``BLOCK_M`` of them. What a request attends to is cut into tiles, those
of the prefix first and those of the tree behind them, and the tiles are cut into ``splits`` runs of about equal length
that are worked on side by side; each leaves its result with the log-sum-exp of its scores, by which a second kernel
weighs and adds them.

All shapes come from the host and all lengths from the device, so a launch waits for nothing and may be captured in a
CUDA graph; ``num_splits`` is part of the launch and depends on shapes alone.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.tree_attention import TreeRows

QUERY_TILE_BYTES = 32 * 1024
KEY_TILE_BYTES = 16 * 1024  # with two stages of keys and values 96 KiB in all: within what every GPU since Ampere has
WARPS_PER_PROCESSOR = 8  # as many as the registers of a multiprocessor hold at once
MIN_SPLIT = 256  # slots; below that the second kernel costs more than the split gains
MAX_SPLITS = 64
LOG2_E = math.log2(math.e)


@triton.jit
def _seen(visible_ptr, row, own, first, num_nodes, stride_row, stride_word, BLOCK_T: tl.constexpr):
    """``[M, BLOCK_T]``: whether each row sees each node from ``first`` on, which all are in one word."""
    word = tl.load(visible_ptr + row * stride_row + (first // 32) * stride_word, mask=own, other=0)
    node = first + tl.arange(0, BLOCK_T)
    return ((word[:, None] >> (node % 32)[None, :]) & 1 != 0) & (node < num_nodes)[None, :]


@triton.jit
def _attend(
    acc, top, total, query, slot, read, visible, table_ptr, key_ptr, value_ptr,
    stride_table, stride_key_page, stride_key_slot, stride_key_dim,
    stride_value_page, stride_value_slot, stride_value_dim, scale, soft_cap,
    HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, PAGE_SIZE: tl.constexpr, SOFT_CAP: tl.constexpr,
):  # fmt: skip
    """Add one tile of slots to the softmax. Only what somebody sees is read: a weight of 0 does not cancel a NaN."""
    dim = tl.arange(0, BLOCK_D)
    in_head = dim < HEAD_SIZE
    page = tl.load(table_ptr + (slot // PAGE_SIZE) * stride_table, mask=read, other=0).to(tl.int64)
    place = slot % PAGE_SIZE
    keys = key_ptr + page * stride_key_page + place * stride_key_slot
    values = value_ptr + page * stride_value_page + place * stride_value_slot
    key = tl.load(keys[None, :] + dim[:, None] * stride_key_dim, mask=read[None, :] & in_head[:, None], other=0.0)
    value = tl.load(values[:, None] + dim[None, :] * stride_value_dim, mask=read[:, None] & in_head[None, :], other=0.0)
    # "ieee" is for float32, which tensor cores would cut to 10 bits of mantissa.
    scores = tl.dot(query, key, input_precision="ieee") * scale
    if SOFT_CAP:
        scores = soft_cap * (2.0 * tl.sigmoid(2.0 * scores) - 1.0)  # tanh
    scores = tl.where(visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, 1))
    # A row that has seen nothing yet has -inf for its maximum, and -inf less -inf would be NaN.
    base = tl.where(new_top == float("-inf"), 0.0, new_top)
    weights = tl.exp2(scores - base[:, None])
    shrink = tl.exp2(top - base)
    acc = acc * shrink[:, None] + tl.dot(weights.to(value.dtype), value, input_precision="ieee")
    return acc, new_top, total * shrink + tl.sum(weights, 1)


@triton.jit(do_not_specialize=["num_nodes", "max_slots", "num_rows"])
def _tree_attention_kernel(
    query_ptr, key_ptr, value_ptr, table_ptr, start_ptr, prefix_ptr, visible_ptr, out_ptr, lse_ptr,
    stride_query_row, stride_query_head, stride_query_dim,
    stride_key_page, stride_key_head, stride_key_slot, stride_key_dim,
    stride_value_page, stride_value_head, stride_value_slot, stride_value_dim,
    stride_table_request, stride_table, stride_visible_request, stride_visible_row, stride_visible_word,
    stride_out_split, stride_out_row, stride_out_head, stride_out_dim,
    num_nodes, max_slots, num_rows, scale, soft_cap,
    KV_HEADS: tl.constexpr, GROUPS: tl.constexpr, HEAD_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, SOFT_CAP: tl.constexpr, SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Grid ``(row tiles, requests * KV_HEADS, splits)``: programs that read the same keys are neighbours."""
    request, kv_head = tl.program_id(1) // KV_HEADS, tl.program_id(1) % KV_HEADS
    packed = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    row, head = packed // GROUPS, kv_head * GROUPS + packed % GROUPS
    start = tl.load(start_ptr + request)
    count = tl.load(start_ptr + request + 1) - start
    if tl.program_id(0) * BLOCK_M >= count * GROUPS:
        return  # a request of fewer rows than the widest
    own = row < count
    prefix = tl.load(prefix_ptr + request).to(tl.int32)
    visible_ptr += request.to(tl.int64) * stride_visible_request
    table_ptr += request.to(tl.int64) * stride_table_request
    key_ptr += kv_head.to(tl.int64) * stride_key_head
    value_ptr += kv_head.to(tl.int64) * stride_value_head

    # The first slot that each row sees, that any row of the tile sees, and that the root would see: where the loop
    # begins. With bounds that come from a reduction the loop would not be pipelined.
    oldest = tl.zeros([BLOCK_M], tl.int32)
    lowest = 0
    begin = 0
    if WINDOW:
        begin = tl.maximum(prefix + 1 - WINDOW, 0)
        oldest += prefix - WINDOW
        for node in range(0, num_nodes, BLOCK_T):
            seen = _seen(visible_ptr, row, own, node, num_nodes, stride_visible_row, stride_visible_word, BLOCK_T)
            oldest += tl.sum(seen.to(tl.int32), 1)
        lowest = tl.min(tl.where(own, oldest, prefix), 0)
    prefix_tiles = tl.cdiv(prefix - begin, BLOCK_N)
    tiles = prefix_tiles + tl.cdiv(num_nodes, BLOCK_T)
    per_split = tl.cdiv(tiles, tl.num_programs(2))
    first = tl.program_id(2) * per_split
    last = tl.minimum(first + per_split, tiles)

    dim = tl.arange(0, BLOCK_D)
    stored = own[:, None] & (dim < HEAD_SIZE)[None, :]
    query_row = (start + row).to(tl.int64)
    query_ptr += query_row * stride_query_row + head * stride_query_head
    query = tl.load(query_ptr[:, None] + dim[None, :] * stride_query_dim, mask=stored, other=0.0)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    top = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    column = tl.arange(0, BLOCK_N)
    for tile in range(first, tl.minimum(last, prefix_tiles)):
        slot = begin + tile * BLOCK_N + column
        read = (slot >= lowest) & (slot < prefix)
        visible = read[None, :] & (slot[None, :] >= oldest[:, None])
        acc, top, total = _attend(
            acc, top, total, query, slot, read, visible, table_ptr, key_ptr, value_ptr,
            stride_table, stride_key_page, stride_key_slot, stride_key_dim,
            stride_value_page, stride_value_slot, stride_value_dim, scale, soft_cap,
            HEAD_SIZE, BLOCK_D, PAGE_SIZE, SOFT_CAP,
        )  # fmt: skip
    for tile in range(tl.maximum(first, prefix_tiles), last):
        node = (tile - prefix_tiles) * BLOCK_T
        slot = prefix + node + tl.arange(0, BLOCK_T)
        seen = _seen(visible_ptr, row, own, node, num_nodes, stride_visible_row, stride_visible_word, BLOCK_T)
        visible = seen & (slot < max_slots)[None, :]
        read = tl.max(visible.to(tl.int32), 0) > 0
        acc, top, total = _attend(
            acc, top, total, query, slot, read, visible, table_ptr, key_ptr, value_ptr,
            stride_table, stride_key_page, stride_key_slot, stride_key_dim,
            stride_value_page, stride_value_slot, stride_value_dim, scale, soft_cap,
            HEAD_SIZE, BLOCK_D, PAGE_SIZE, SOFT_CAP,
        )  # fmt: skip

    split = tl.program_id(2).to(tl.int64)
    if SPLIT:
        lse = top + tl.log2(total)  # -inf where the run shows the row nothing
        tl.store(lse_ptr + (split * num_rows + query_row) * (KV_HEADS * GROUPS) + head, lse, mask=own)
        stored = stored & (total > 0)[:, None]
    out_ptr += split * stride_out_split + query_row * stride_out_row + head * stride_out_head
    tl.store(out_ptr[:, None] + dim[None, :] * stride_out_dim, acc / total[:, None], mask=stored)


@triton.jit(do_not_specialize=["num_rows", "splits"])
def _merge_kernel(
    partial_ptr, lse_ptr, out_ptr, stride_out_row, stride_out_head, stride_out_dim, num_rows, splits,
    HEAD_SIZE: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_S: tl.constexpr,
):  # fmt: skip
    """``out = sum_s partial_s 2^(lse_s - lse)``. Grid ``(rows, heads)``."""
    row, head, heads = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    split, dim = tl.arange(0, BLOCK_S), tl.arange(0, BLOCK_D)
    at = (split * num_rows.to(tl.int64) + row) * heads + head
    lse = tl.load(lse_ptr + at, mask=split < splits, other=float("-inf"))
    weights = tl.exp2(lse - tl.max(lse, 0))
    # Runs that showed the row nothing have not been written.
    mask = (lse > float("-inf"))[:, None] & (dim < HEAD_SIZE)[None, :]
    partial = tl.load(partial_ptr + at[:, None] * HEAD_SIZE + dim[None, :], mask=mask, other=0.0)
    merged = tl.sum(partial * weights[:, None], 0) / tl.sum(weights, 0)
    out_ptr += row * stride_out_row + head * stride_out_head
    tl.store(out_ptr + dim * stride_out_dim, merged, mask=dim < HEAD_SIZE)


def row_tile(query: Tensor, key_cache: Tensor, rows: TreeRows) -> tuple[int, int, int]:
    """``BLOCK_M``, how many such tiles the widest request has, and the warps for one."""
    packed = rows.max_query_len * (query.shape[1] // key_cache.shape[1])
    row_bytes = triton.next_power_of_2(query.shape[2]) * query.element_size()
    block = max(16, min(128, triton.next_power_of_2(packed), QUERY_TILE_BYTES // row_bytes))
    return block, triton.cdiv(packed, block), 8 if block == 128 else 4


def num_splits(query: Tensor, key_cache: Tensor, rows: TreeRows) -> int:
    """As many as fill the GPU at once, by shapes alone: the same in every replay of a graph."""
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    _, row_tiles, warps = row_tile(query, key_cache, rows)
    programs = rows.block_table.shape[0] * key_cache.shape[1] * row_tiles
    return max(1, min(processors * WARPS_PER_PROCESSOR // warps // programs, rows.max_seq_len // MIN_SPLIT, MAX_SPLITS))


def tree_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: TreeRows,
    out: Tensor,
    *,
    scale: float,
    soft_cap: float,
    sliding_window: int,
    splits: int,
) -> None:
    heads, head_size = query.shape[1:]
    kv_heads, page_size = key_cache.shape[1:3]
    block_d = triton.next_power_of_2(head_size)
    block_m, row_tiles, warps = row_tile(query, key_cache, rows)
    block_n = max(16, min(64, KEY_TILE_BYTES // (block_d * query.element_size())))
    partial, lse, split_stride = out, None, 0
    if splits > 1:
        partial = query.new_empty(splits, rows.num_rows, heads, head_size, dtype=torch.float32)
        lse = query.new_empty(splits, rows.num_rows, heads, dtype=torch.float32)
        split_stride = partial.stride(0)
    _tree_attention_kernel[row_tiles, rows.block_table.shape[0] * kv_heads, splits](
        query, key_cache, value_cache, rows.block_table, rows.query_start_loc, rows.prefix_lens, rows.visible,
        partial, lse, *query.stride(), *key_cache.stride(), *value_cache.stride(), *rows.block_table.stride(),
        *rows.visible.stride(), split_stride, *partial.stride()[-3:],
        rows.num_nodes, min(rows.max_seq_len, rows.block_table.shape[1] * page_size), rows.num_rows,
        # The softmax is one of powers of 2; a capped score is cap * tanh(score / cap).
        scale / soft_cap if soft_cap else scale * LOG2_E, soft_cap * LOG2_E,
        KV_HEADS=kv_heads, GROUPS=heads // kv_heads, HEAD_SIZE=head_size, PAGE_SIZE=page_size, WINDOW=sliding_window,
        SOFT_CAP=soft_cap > 0, SPLIT=splits > 1, BLOCK_M=block_m, BLOCK_N=block_n,
        BLOCK_T=min(block_n, 32), BLOCK_D=block_d, num_warps=warps, num_stages=2,
    )  # fmt: skip
    if splits > 1:
        _merge_kernel[rows.num_rows, heads](
            partial, lse, out, *out.stride(), rows.num_rows, splits,
            HEAD_SIZE=head_size, BLOCK_D=block_d, BLOCK_S=triton.next_power_of_2(splits), num_warps=4,
        )  # fmt: skip
