"""The second half of tree attention in Triton, after another kernel did the first. All rows of a request see its whole
prefix, so that a library's kernel may attend to that, and what is left are the nodes.

Softmax goes on from any part of it: the result over the prefix and the log-sum-exp of its scores say all that a kernel
knows when it has come to the end of the prefix. So this one begins there, and writes its result over the other's. A
request's nodes are few, so that nothing is cut into runs.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.relaunch import Relaunch, launch_as_before
from vllm_specext.kernels.tree_attention.kernel import LOG2_E, _attend, _pages, _seen
from vllm_specext.kernels.tree_attention.naive import TreeRows

BLOCK_M, BLOCK_T = 32, 32
"""Rows times heads of a program, which have so little to do that many small programs are fastest, and nodes at once."""


@triton.jit(do_not_specialize=["num_nodes", "max_slots", "stride_lse_head"])
def _attend_to_nodes_kernel(
    query_ptr, key_ptr, value_ptr, out_ptr, lse_ptr, table_ptr, start_ptr, prefix_ptr, visible_ptr,
    stride_query_row, stride_query_head, stride_query_dim,
    stride_key_page, stride_key_head, stride_key_slot, stride_key_dim,
    stride_value_page, stride_value_head, stride_value_slot, stride_value_dim,
    stride_out_row, stride_out_head, stride_out_dim, stride_lse_head, stride_lse_row,
    stride_table_request, stride_table, stride_visible_request, stride_visible_row, stride_visible_word,
    num_nodes, max_slots, scale, soft_cap, log2_e,
    GROUPS: tl.constexpr, HEAD_SIZE: tl.constexpr, PAGE_SIZE: tl.constexpr, SOFT_CAP: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    """Grid ``(row tiles, heads of the cache, requests)``."""
    kv_head, request = tl.program_id(1), tl.program_id(2)
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
    dim = tl.arange(0, BLOCK_D)
    stored = own[:, None] & (dim < HEAD_SIZE)[None, :]
    row_of_all = (start + row).to(tl.int64)
    query_ptr += row_of_all * stride_query_row + head * stride_query_head
    query = tl.load(query_ptr[:, None] + dim[None, :] * stride_query_dim, mask=stored, other=0.0)
    out_ptr += row_of_all * stride_out_row + head * stride_out_head

    # Of an empty prefix, libraries say -inf or inf, and the result is anything. NaN stays one.
    lse = tl.load(lse_ptr + head * stride_lse_head + row_of_all * stride_lse_row, mask=own, other=float("-inf"))
    lse = tl.where(lse == float("inf"), float("-inf"), lse)
    has_prefix = lse != float("-inf")
    acc = tl.load(out_ptr[:, None] + dim[None, :] * stride_out_dim, mask=stored & has_prefix[:, None], other=0.0)
    acc = acc.to(tl.float32)
    total = tl.where(has_prefix, 1.0, 0.0)
    # A maximum is kept as scores come: before they are scaled, unless they are capped.
    top = lse * log2_e if SOFT_CAP else lse * log2_e / scale
    for node in range(0, num_nodes, BLOCK_T):
        slot = prefix + node + tl.arange(0, BLOCK_T)
        seen = _seen(visible_ptr, row, own, node, num_nodes, stride_visible_row, stride_visible_word, BLOCK_T)
        visible = seen & (slot < max_slots)[None, :]
        read = tl.max(visible.to(tl.int32), 0) > 0
        page = _pages(table_ptr, stride_table, slot, read, PAGE_SIZE)
        acc, top, total = _attend(
            acc, top, total, query, None, slot, page, read, visible, key_ptr, value_ptr,
            stride_key_page, stride_key_slot, stride_key_dim,
            stride_value_page, stride_value_slot, stride_value_dim, scale, soft_cap,
            HEAD_SIZE, BLOCK_D, PAGE_SIZE, SOFT_CAP,
        )  # fmt: skip
    tl.store(out_ptr[:, None] + dim[None, :] * stride_out_dim, acc / total[:, None], mask=stored)


def attend_to_nodes(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: TreeRows,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    soft_cap: float = 0.0,
) -> None:
    tensors = query, key_cache, value_cache, out, lse
    launch_as_before(rows.shared, tensors, (scale, soft_cap), lambda: _launch(tensors, rows, scale, soft_cap))


def _launch(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor], rows: TreeRows, scale: float, soft_cap: float
) -> Relaunch:
    query, key_cache = tensors[:2]
    heads, head_size = query.shape[1:]
    kv_heads, page_size = key_cache.shape[1:3]
    groups = heads // kv_heads
    return Relaunch(
        _attend_to_nodes_kernel,
        (triton.cdiv(rows.max_query_len * groups, BLOCK_M), kv_heads, rows.block_table.shape[0]),
        tensors,
        (
            rows.block_table, rows.query_start_loc, rows.prefix_lens, rows.visible,
            *(stride for tensor in tensors for stride in tensor.stride()),
            *rows.block_table.stride(), *rows.visible.stride(),
            rows.num_nodes, min(rows.max_seq_len, rows.block_table.shape[1] * page_size),
            # The softmax is one of powers of 2; a capped score is cap * tanh(score / cap).
            scale / soft_cap if soft_cap else scale * LOG2_E.value, soft_cap * LOG2_E.value, LOG2_E.value,
        ),
        GROUPS=groups, HEAD_SIZE=head_size, PAGE_SIZE=page_size, SOFT_CAP=soft_cap > 0,
        BLOCK_M=BLOCK_M, BLOCK_T=BLOCK_T, BLOCK_D=triton.next_power_of_2(head_size),
        num_warps=4, num_stages=1,
    )  # fmt: skip
