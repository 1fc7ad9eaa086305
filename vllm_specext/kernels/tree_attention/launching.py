"""Launches of tree attention in Triton. What layers of a step have in common is worked out for the first of them."""

from typing import NamedTuple

import torch
import triton
from torch import Tensor

from vllm_specext.kernels.relaunch import Launched, Relaunch, launch_as_before
from vllm_specext.kernels.tree_attention.kernel import LOG2_E, _merge_kernel, _tree_attention_kernel
from vllm_specext.kernels.tree_attention.naive import TreeRows
from vllm_specext.kernels.tree_attention.tiles import (
    MAX_SPLITS,
    MIN_RUN,
    Launch,
    Processors,
    further_size,
    launch_for,
    lengths_tried,
    merge_blocks,
    row_tiles,
)


class _Both(NamedTuple):
    attend: Relaunch
    merge: Relaunch

    @property
    def can_repeat(self) -> bool:
        return self.attend.can_repeat

    def __call__(self, *tensors: Tensor | None) -> None:
        self.attend(*tensors)
        self.merge(tensors[3])


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
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    sinks: Tensor | None = None,
    launch: Launch | None = None,
) -> None:
    """``launch``: in place of the one that is chosen for the GPU."""
    scales = (x if x is None else x.expand(key_cache.shape[1]) for x in (q_scale, k_scale, v_scale))
    by_head = *scales, sinks

    def first() -> Launched:
        chosen = launch or launch_for(query, key_cache, value_cache, rows, Processors.of(query.device))
        return _launch(query, key_cache, value_cache, out, by_head, rows, scale, soft_cap, sliding_window, chosen)

    same = scale, soft_cap, sliding_window, launch
    launch_as_before(rows.shared, (query, key_cache, value_cache, out, *by_head), same, first)


def _launch(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    out: Tensor,
    by_head: tuple[Tensor | None, ...],
    rows: TreeRows,
    scale: float,
    soft_cap: float,
    sliding_window: int,
    launch: Launch,
) -> Launched:
    heads, head_size = query.shape[1], value_cache.shape[3]
    kv_heads, page_size = key_cache.shape[1:3]
    requests = most_runs = rows.block_table.shape[0]
    partial = lse = counts = None
    (tile, runs), block_r = launch[:2], launch.block_of_requests(requests)
    if runs > 1:
        most_runs += runs - 1
        counts = rows.query_start_loc.new_empty(block_r, dtype=torch.int32)
        partial = query.new_empty(most_runs, rows.max_query_len, heads, head_size, dtype=torch.float32)
        lse = query.new_empty(most_runs, rows.max_query_len, heads, dtype=torch.float32)
    groups, block_d = heads // kv_heads, triton.next_power_of_2(head_size)
    attend = Relaunch(
        _tree_attention_kernel,
        (row_tiles(rows.max_query_len * groups, tile), kv_heads, most_runs),
        (query, key_cache, value_cache, out, *by_head),
        (
            rows.block_table, rows.query_start_loc, rows.prefix_lens, rows.visible, partial, lse, counts,
            *query.stride(), *key_cache.stride(), *value_cache.stride(), *out.stride(),
            *(0 if x is None else x.stride(0) for x in by_head),
            *rows.block_table.stride(), *rows.visible.stride(),
            rows.num_nodes, min(rows.max_seq_len, rows.block_table.shape[1] * page_size), rows.max_query_len,
            requests, runs, launch.at_once,
            # The softmax is one of powers of 2; a capped score is cap * tanh(score / cap).
            scale / soft_cap if soft_cap else scale * LOG2_E.value, soft_cap * LOG2_E.value,
        ),
        KV_HEADS=kv_heads, GROUPS=groups, HEAD_SIZE=head_size, FURTHER=further_size(key_cache, value_cache),
        PAGE_SIZE=page_size, WINDOW=sliding_window, SOFT_CAP=soft_cap > 0, SPLIT=runs > 1,
        MIN_RUN=MIN_RUN, MAX_SPLITS=MAX_SPLITS,
        BLOCK_M=tile.block_m, BLOCK_N=tile.block_n, BLOCK_T=min(tile.block_n, 32), BLOCK_D=block_d, BLOCK_R=block_r,
        LENGTHS=lengths_tried(block_r) if runs > 1 else 0,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    if runs == 1:
        return attend
    block_h, block_s = merge_blocks(block_d)
    merge = Relaunch(
        _merge_kernel,
        # A request in several runs is longer than one, of which the batch has no more than `runs` in slots.
        (triton.cdiv(heads, block_h), rows.max_query_len, min(requests, runs - 1)),
        (out,),
        (partial, lse, counts, rows.query_start_loc, *out.stride(), requests),
        HEADS=heads, HEAD_SIZE=head_size, BLOCK_D=block_d, BLOCK_H=block_h, BLOCK_S=block_s, BLOCK_R=block_r,
        num_warps=4,
    )  # fmt: skip
    return _Both(attend, merge)
