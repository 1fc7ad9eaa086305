"""Learning how far drafters can be trusted, in Triton: one program, which reads all requests twice."""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.tree.calibration import LEAST, MOST, PATIENCE, Learned

BLOCK = 64
"""Requests that are read at once."""


@triton.jit
def _is_of(slot, real, temperatures_ptr, up_to, kind):
    """``[BLOCK, BLOCK_K]``: which requests are of which kind."""
    temperature = tl.load(temperatures_ptr + slot, mask=real, other=0.0)
    own = tl.sum((temperature[:, None] > up_to[None, :]).to(tl.int32), 1)
    return real[:, None] & (own[:, None] == kind[None, :])


@triton.jit(do_not_specialize=["requests", "verified"])
def _calibrate_kernel(
    slots_ptr, temperatures_ptr, expected_ptr, num_sampled_ptr, counts_ptr, up_to_ptr, logarithms_ptr, sharpness_ptr,
    requests, verified,
    PATIENCE: tl.constexpr, LEAST: tl.constexpr, MOST: tl.constexpr,
    HAS_COUNTS: tl.constexpr, KINDS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Grid 1."""
    kind = tl.arange(0, BLOCK_K)
    up_to = tl.load(up_to_ptr + kind, mask=kind < KINDS - 1, other=float("inf"))
    logarithm = tl.load(logarithms_ptr + kind, mask=kind < KINDS, other=0.0)
    moved = tl.zeros([BLOCK_K], tl.float32)
    trees = tl.zeros([BLOCK_K], tl.float32)
    for start in range(0, verified, BLOCK):
        request = start + tl.arange(0, BLOCK)
        counts = request < verified
        if HAS_COUNTS:
            counts &= tl.load(counts_ptr + request, mask=counts, other=0) != 0
        slot = tl.load(slots_ptr + request, mask=counts, other=0)
        is_of = _is_of(slot, counts, temperatures_ptr, up_to, kind)
        expected = tl.load(expected_ptr + slot, mask=counts, other=0.0)
        accepted = tl.load(num_sampled_ptr + request, mask=counts, other=1).to(tl.float32) - 1
        off = (accepted - expected) / (1 + expected)
        moved += tl.sum(tl.where(is_of, off[:, None], 0.0), 0)
        trees += tl.sum(tl.where(is_of, 1.0, 0.0), 0)
    logarithm = tl.minimum(tl.maximum(logarithm + moved / (PATIENCE + trees), LEAST), MOST)
    tl.store(logarithms_ptr + kind, logarithm, mask=kind < KINDS)
    for start in range(0, requests, BLOCK):
        request = start + tl.arange(0, BLOCK)
        real = request < requests
        slot = tl.load(slots_ptr + request, mask=real, other=0)
        is_of = _is_of(slot, real, temperatures_ptr, up_to, kind)
        sharpness = tl.exp(tl.sum(tl.where(is_of, logarithm[None, :], 0.0), 1))
        tl.store(sharpness_ptr + request, sharpness, mask=real)


def calibrate(
    learned: Learned,
    slots: Tensor,
    temperatures: Tensor,
    expected: Tensor,
    num_sampled: Tensor,
    verified: int,
    counts: Tensor | None,
) -> Tensor:
    kinds = len(learned.logarithms)
    sharpness = torch.empty(len(slots), dtype=torch.float32, device=slots.device)
    _calibrate_kernel[1,](
        slots, temperatures, expected, num_sampled, slots if counts is None else counts, learned.up_to,
        learned.logarithms, sharpness, len(slots), verified,
        PATIENCE=PATIENCE, LEAST=LEAST, MOST=MOST, HAS_COUNTS=counts is not None,
        KINDS=kinds, BLOCK_K=triton.next_power_of_2(kinds), BLOCK=BLOCK, num_warps=1,
    )  # fmt: skip
    return sharpness
