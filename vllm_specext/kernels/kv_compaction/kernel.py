"""KV compaction in Triton: all layers in one launch.

A program moves the rows of one request in one head of one cache. It reads a run of them before it writes the first, and
the runs follow each other in ascending order, so no row is overwritten before it is read.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.pointers import Caches

RUN = 16
"""A path of a usual tree is one run."""


@triton.jit(do_not_specialize=["count"])
def _compact_kernel(
    entries_ptr, source_ptr, destination_ptr, example_ptr, stride_source, stride_source_place,
    stride_destination, stride_destination_place, count,
    HEADS: tl.constexpr, BLOCK_L: tl.constexpr, BLOCK_W: tl.constexpr,
):  # fmt: skip
    """Grid ``(caches * HEADS, requests)``. ``example_ptr`` is of the words' type and not read."""
    entry = entries_ptr + (tl.program_id(0) // HEADS) * 7
    head, request = tl.program_id(0) % HEADS, tl.program_id(1).to(tl.int64)
    if head >= tl.load(entry + 4):
        return
    source_ptr += request * stride_source
    destination_ptr += request * stride_destination
    rows = tl.load(entry).to(example_ptr.dtype) + head * tl.load(entry + 2)
    stride_page, stride_slot = tl.load(entry + 1), tl.load(entry + 3)
    words, page_size = tl.load(entry + 5), tl.load(entry + 6).to(tl.int32)
    word = tl.arange(0, BLOCK_W)
    for first in range(0, count, BLOCK_L):
        place = first + tl.arange(0, BLOCK_L)
        # No cache has 2^31 slots, and 64-bit division is slow.
        source = tl.load(source_ptr + place * stride_source_place, mask=place < count, other=0).to(tl.int32)
        destination = tl.load(destination_ptr + place * stride_destination_place, mask=place < count, other=0)
        destination = destination.to(tl.int32)
        moves = (source != destination)[:, None] & (word < words)[None, :]
        old = (source // page_size) * stride_page + (source % page_size) * stride_slot
        new = (destination // page_size) * stride_page + (destination % page_size) * stride_slot
        moved = tl.load(rows + old[:, None] + word[None, :], mask=moves, other=0)
        tl.debug_barrier()  # all warps have read
        tl.store(rows + new[:, None] + word[None, :], moved, mask=moves)
        tl.debug_barrier()  # and have written what the next run may read


def compact(caches: Caches, source: Tensor, destination: Tensor) -> None:
    table = caches.table
    requests, count = source.shape
    block_l, block_w = min(RUN, triton.next_power_of_2(count)), triton.next_power_of_2(table.words)
    _compact_kernel[len(caches) * table.heads, requests](
        table.entries, source, destination, table.entries.view(table.word),
        *source.stride(), *destination.stride(), count,
        HEADS=table.heads, BLOCK_L=block_l, BLOCK_W=block_w, num_warps=max(1, min(4, block_l * block_w // 256)),
    )  # fmt: skip
