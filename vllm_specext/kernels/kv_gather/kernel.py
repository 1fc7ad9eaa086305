"""The gather in Triton: all layers in one launch, a program for the rows of one token in one cache."""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.pointers import Caches


@triton.jit
def _gather_kernel(
    entries_ptr, slots_ptr, out_ptr, stride_slots,
    CACHES: tl.constexpr, HEADS: tl.constexpr, WORDS: tl.constexpr, BLOCK_HW: tl.constexpr,
):  # fmt: skip
    """Grid ``tokens * CACHES``: a token's programs are neighbours and write what lies side by side."""
    cache, token = tl.program_id(0) % CACHES, (tl.program_id(0) // CACHES).to(tl.int64)
    entry = entries_ptr + cache * 7
    slot = tl.load(slots_ptr + token * stride_slots)
    real = slot >= 0
    slot = slot.to(tl.int32)  # no cache has 2^31 slots, and 64-bit division is slow
    page_size = tl.load(entry + 6).to(tl.int32)
    row = tl.load(entry).to(out_ptr.dtype)
    row += (slot // page_size) * tl.load(entry + 1) + (slot % page_size) * tl.load(entry + 3)
    at = tl.arange(0, BLOCK_HW)
    head, word = at // WORDS, at % WORDS
    own = head < HEADS
    copied = tl.load(row + head * tl.load(entry + 2) + word, mask=own & real, other=0)
    # Caches are keys and values in turn, and so are the rows of a head.
    out_ptr += (token * (CACHES // 2) + cache // 2) * (HEADS * 2 * WORDS) + (cache % 2) * WORDS
    tl.store(out_ptr + head * (2 * WORDS) + word, copied, mask=own)


def gather(caches: Caches, slots: Tensor) -> Tensor:
    table, first = caches.table, caches[0]
    if not table.alike or len(caches) % 2:
        raise ValueError("keys and values of all layers must have the same heads, width and data type.")
    out = first.new_empty(len(slots), len(caches) // 2, table.heads, 2, first.shape[3])
    if len(slots):
        block = triton.next_power_of_2(table.heads * table.words)
        _gather_kernel[len(slots) * len(caches),](
            table.entries, slots, out.view(table.word), *slots.stride(),
            CACHES=len(caches), HEADS=table.heads, WORDS=table.words, BLOCK_HW=block,
            num_warps=max(1, min(4, block // 64)),
        )  # fmt: skip
    return out
