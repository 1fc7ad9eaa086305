"""The KV slots of rows in Triton: programs for each request."""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.kv_slots.naive import NOWHERE

LARGEST_BLOCK = 256
"""Rows of a program."""

STRIDES = ["stride_table", "slots_of_request", "slots_of_row", "written_of_request", "written_of_row"]


@triton.jit(do_not_specialize=[*STRIDES, "rows", "limit"])
def _kv_slots_kernel(
    table_ptr, slots_ptr, written_ptr, out_ptr,
    stride_table, slots_of_request, slots_of_row, written_of_request, written_of_row, rows, limit,
    NOWHERE: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid ``requests, blocks of rows``."""
    request = tl.program_id(0).to(tl.int64)
    row = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    real = row < rows
    slot = tl.load(slots_ptr + request * slots_of_request + row * slots_of_row, mask=real, other=0)
    written = tl.load(written_ptr + request * written_of_request + row * written_of_row, mask=real, other=0) != 0
    kept = written & (slot < limit)
    page = tl.load(table_ptr + request * stride_table + slot // PAGE_SIZE, mask=kept, other=0).to(tl.int64)
    found = tl.where(kept, page * PAGE_SIZE + slot % PAGE_SIZE, NOWHERE)
    tl.store(out_ptr + request * rows + row, found, mask=real)


def kv_slots(block_table: Tensor, slots: Tensor, written: Tensor, page_size: int, limit: int) -> Tensor:
    requests, rows = slots.shape
    out = torch.empty(requests * rows, dtype=torch.int64, device=slots.device)
    block = min(LARGEST_BLOCK, triton.next_power_of_2(rows))
    _kv_slots_kernel[requests, triton.cdiv(rows, block)](
        block_table, slots, written.view(torch.uint8), out,
        block_table.stride(0), *slots.stride(), *written.stride(), rows, limit,
        NOWHERE=NOWHERE, PAGE_SIZE=page_size, BLOCK=block, num_warps=1,
    )  # fmt: skip
    return out
