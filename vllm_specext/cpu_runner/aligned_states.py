"""Recurrent states in the blocks that a cache of prefixes has them in, on a CPU: where V2 copies them (vLLM's mode
"align"). A state lies in the block of the last token that is scheduled, and a cached one where its block ends."""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

import ctypes
from typing import Any

from torch import Tensor

from vllm_specext.engine.changes.replacements import replaces


def preprocess_mamba_align(
    idx_mapping: Tensor,
    state_idx: Tensor,
    num_computed_tokens: Tensor,
    query_start_loc: Tensor,
    num_accepted_tokens: Tensor,
    src_col: Tensor,
    src_off: Tensor,
    num_reqs: int,
    BLOCK_SIZE: int,
    MAMBA_BLOCK_SIZE: int,
) -> None:
    """Move ``state_idx`` ``[M]`` of the requests in ``idx_mapping`` ``[R]`` to the block that a step's last token lies
    in. ``src_col`` and ``src_off`` ``[M]`` get the block before and what was accepted after the first row of its
    step."""
    requests = idx_mapping[:num_reqs].long()
    before = state_idx[requests]
    src_col[requests] = before
    src_off[requests] = (num_accepted_tokens[requests] - 1).clamp(min=0).to(src_off.dtype)
    after = num_computed_tokens[requests] + query_start_loc[: num_reqs + 1].diff()
    now = ((after + MAMBA_BLOCK_SIZE - 1) // MAMBA_BLOCK_SIZE - 1).to(state_idx.dtype)
    state_idx[requests] = now
    num_accepted_tokens[requests[(before >= 0) & (before != now)]] = 1


@replaces(
    "vllm.v1.worker.mamba_utils.MambaSpecDecodeGPUContext.run_fused_precopy",
    name="states that go to another block, on a CPU",
    why="a launch shows only addresses in tables of raw pointers",
    how="replaced by copies of memory, only where V2 runs on a CPU",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    signature="self num_reqs state_idx_gpu src_col_gpu token_bias_gpu idx_mapping",
)
def run_fused_precopy(
    self: Any,
    num_reqs: int,
    state_idx_gpu: Tensor,
    src_col_gpu: Tensor,
    token_bias_gpu: Tensor,
    idx_mapping: Tensor | None,
) -> None:
    """Copy the states of requests that go on in another block there, before a step."""
    requests = range(num_reqs) if idx_mapping is None else idx_mapping[:num_reqs].tolist()
    for request in requests:
        source, target = int(src_col_gpu[request]), int(state_idx_gpu[request])
        if request >= 0 and source >= 0 and source != target:
            _copy(self, request, source, target, int(token_bias_gpu[request]))


@replaces(
    "vllm.v1.worker.mamba_utils.MambaSpecDecodeGPUContext.run_fused_postprocess_align",
    name="states where blocks end, on a CPU",
    why="a launch shows only addresses in tables of raw pointers",
    how="replaced by copies of memory, only where V2 runs on a CPU",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    signature="self num_reqs num_accepted_tokens_gpu state_idx_gpu new_num_computed_tokens_gpu idx_mapping",
)
def run_fused_postprocess_align(
    self: Any,
    num_reqs: int,
    num_accepted_tokens_gpu: Tensor,
    state_idx_gpu: Tensor,
    new_num_computed_tokens_gpu: Tensor,
    idx_mapping: Tensor,
) -> None:
    """After a step, copy the states of requests that passed the end of a block to that block."""
    for request in idx_mapping[:num_reqs].tolist():
        if request < 0:
            continue
        computed, accepted = int(new_num_computed_tokens_gpu[request]), int(num_accepted_tokens_gpu[request])
        end, first = computed // self.block_size * self.block_size, computed - accepted + 1
        if end < first:
            continue
        source, target = int(state_idx_gpu[request]), end // self.block_size - 1
        if source == target:
            num_accepted_tokens_gpu[request] = 1
        if source != target or end != first:
            _copy(self, request, source, target, end - first)


def _copy(context: Any, request: int, source: int, target: int, accepted: int) -> None:
    """Copy the states of a ``request``, those after so many ``accepted`` rows, between columns of its block table."""
    for place in range(context.num_states):
        table = int(context.block_table_ptrs[int(context.state_group_indices[place])])
        row = table + request * context.block_table_stride_req * ctypes.sizeof(ctypes.c_int32)
        base, stride = int(context.state_base_addrs[place]), int(context.state_block_strides[place])
        element, inner = int(context.state_elem_sizes[place]), int(context.state_inner_sizes[place])
        to = base + _block(row, target) * stride
        width, rows = int(context.state_conv_widths[place]), int(context.state_dim_row_count[place])
        if width == 0:
            ctypes.memmove(to, base + _block(row, source + accepted) * stride, inner * element)
            continue
        one = inner * element  # the inputs of a token, or of a channel of it
        begin = base + _block(row, source) * stride + accepted * one
        for channel in range(max(rows, 1)):
            step = channel * int(context.state_dim_row_stride[place])
            ctypes.memmove(to + step, begin + step, (width - accepted) * one)


def _block(row: int, column: int) -> int:
    return ctypes.c_int32.from_address(row + column * ctypes.sizeof(ctypes.c_int32)).value
