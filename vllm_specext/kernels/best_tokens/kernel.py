"""The most likely tokens in Triton: a program for each block of a row's logits, and one for each row.

A logit and its token are packed into one integer, whose order is that of the logits, the lower token first where they
tie. So the best of a block are found by taking the maximum ``K`` times, and the best of a row are the best of its
blocks' best. The sum over all tokens, which log-probabilities need, is formed in the same pass where they are wanted.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

LARGEST_BLOCK = 4096
"""Logits of a program. A place in the block takes 12 bits."""

NONE = tl.constexpr(-(2**63))
NONE_SHORT = tl.constexpr(-(2**31))
"""What packs no logit."""

NAN = tl.constexpr(0x7FFFFFFF)
"""The rank of NaN: before all others, as torch has it."""


@triton.jit
def _flip(bits):
    """From the bits of a float32 to an int32 of the same order, and back."""
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _best_of_blocks_kernel(
    logits_ptr, sharpness_ptr, best_ptr, largest_ptr, sums_ptr, stride, count,
    K: tl.constexpr, BLOCK: tl.constexpr, IS_SHORT: tl.constexpr,
):  # fmt: skip
    """Grid ``rows, blocks``. ``best_ptr`` ``[rows, blocks, K]`` int64: packed logits, best first. ``largest_ptr`` and
    ``sums_ptr`` ``[rows, blocks]``: the largest logit, and the sum of the exponentials of all, after it is taken off
    and the rest is multiplied by the row's ``sharpness_ptr`` ``[rows]``; neither where that is ``None``.
    ``IS_SHORT``: logits have 16 bits, and so the 13 lowest of their float32's are 0."""
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = tl.arange(0, BLOCK)
    real = block * BLOCK + place < count
    logits_ptr += row * stride + block * BLOCK
    logit = tl.load(logits_ptr + place, mask=real, other=float("-inf")).to(tl.float32)
    to = row * tl.num_programs(1) + block
    if sharpness_ptr is not None:
        largest = tl.max(logit, 0)
        tl.store(largest_ptr + to, largest)
        less = logit - tl.where(largest == float("-inf"), 0.0, largest)
        tl.store(sums_ptr + to, tl.sum(tl.exp(tl.load(sharpness_ptr + row) * less), 0))

    bits = tl.where(logit == 0, 0.0, logit).to(tl.int32, bitcast=True)  # or -0.0 would rank below 0.0
    rank = tl.where(logit == logit, _flip(bits), NAN)
    token = 0x7FFFFFFF - block * BLOCK - place
    if IS_SHORT:
        packed = tl.where(real, ((rank >> 13) << 12) | (BLOCK - 1 - place), NONE_SHORT)
    else:
        packed = tl.where(real, (rank.to(tl.int64) << 32) | token, NONE)
    for nth in range(K):
        best = tl.max(packed, 0)
        if IS_SHORT:
            packed = tl.where(packed == best, NONE_SHORT, packed)
            short = best >> 12
            # A negative number's lowest bits were flipped.
            own = (short << 13) | tl.where(short < 0, 0x1FFF, 0)
            own_token = 0x7FFFFFFF - block * BLOCK - (BLOCK - 1 - (best & (BLOCK - 1)))
            found = tl.where(best == NONE_SHORT, NONE, (own.to(tl.int64) << 32) | own_token)
        else:
            packed = tl.where(packed == best, NONE, packed)
            found = best
        tl.store(best_ptr + to * K + nth, found)


@triton.jit
def _best_of_rows_kernel(
    best_ptr, sharpness_ptr, largest_ptr, sums_ptr, tokens_ptr, log_probs_ptr, blocks,
    K: tl.constexpr, BLOCK_B: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Grid ``rows``: of the blocks' ``best_ptr`` ``[rows, blocks, K]`` the ``K`` best, with their log-probabilities if
    there is a ``sharpness_ptr``."""
    row = tl.program_id(0).to(tl.int64)
    if sharpness_ptr is not None:
        block = tl.arange(0, BLOCK_B)
        largest = tl.load(largest_ptr + row * blocks + block, mask=block < blocks, other=float("-inf"))
        sums = tl.load(sums_ptr + row * blocks + block, mask=block < blocks, other=0.0)
        top = tl.max(largest, 0)
        # NaN where a logit is NaN or infinite, or all are -inf: then no token has a probability.
        sharpness = tl.load(sharpness_ptr + row)
        total = tl.log(tl.sum(sums * tl.exp(sharpness * (largest - top)), 0))

    candidate = tl.arange(0, BLOCK_C)
    packed = tl.load(best_ptr + row * blocks * K + candidate, mask=candidate < blocks * K, other=NONE)
    for nth in range(K):
        best = tl.max(packed, 0)
        packed = tl.where(packed == best, NONE, packed)
        tl.store(tokens_ptr + row * K + nth, 0x7FFFFFFF - (best & 0x7FFFFFFF))
        if sharpness_ptr is not None:
            logit = _flip((best >> 32).to(tl.int32)).to(tl.float32, bitcast=True)
            log_prob = sharpness * (logit - top) - total
            log_prob = tl.where(log_prob == log_prob, tl.minimum(log_prob, 0.0), float("-inf"))
            tl.store(log_probs_ptr + row * K + nth, log_prob)


def takes(logits: Tensor, k: int) -> bool:
    """Whether the kernels find the ``k`` best of such ``logits`` ``[..., V]``, on whatever device they are."""
    is_float = logits.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return is_float and logits.stride(-1) == 1 and 0 < k <= min(logits.shape[-1], LARGEST_BLOCK)


def best_tokens(logits: Tensor, k: int, sharpness: Tensor) -> tuple[Tensor, Tensor]:
    """``tree.expansion.best_tokens``; of equally likely tokens the one with the lower number comes first."""
    log_probs = torch.empty(*logits.shape[:-1], k, dtype=torch.float32, device=logits.device)
    return _find(logits, k, sharpness.reshape(-1), log_probs), log_probs


def best_token(logits: Tensor) -> Tensor:
    """``logits.argmax(dim=-1)``, of equal logits the first."""
    return _find(logits, 1, None, None)[..., 0]


def _find(logits: Tensor, k: int, sharpness: Tensor | None, log_probs: Tensor | None) -> Tensor:
    """The tokens ``[..., k]``; their ``log_probs`` are written where there is a ``sharpness`` ``[rows]``."""
    count = logits.shape[-1]
    rows = logits.reshape(-1, count)
    block = min(LARGEST_BLOCK, triton.next_power_of_2(count))
    blocks = triton.cdiv(count, block)
    best = torch.empty(len(rows), blocks, k, dtype=torch.int64, device=rows.device)
    largest = sums = None
    if sharpness is not None:
        largest = torch.empty(len(rows), blocks, dtype=torch.float32, device=rows.device)
        # Not the second half of one tensor: where that is aligned to less, Triton compiles another variant.
        sums = torch.empty_like(largest)
    tokens = torch.empty(*logits.shape[:-1], k, dtype=torch.int64, device=rows.device)
    _best_of_blocks_kernel[len(rows), blocks](
        rows, sharpness, best, largest, sums, rows.stride(0), count,
        K=k, BLOCK=block, IS_SHORT=logits.element_size() == 2, num_warps=4,
    )  # fmt: skip
    candidates = triton.next_power_of_2(blocks * k)
    _best_of_rows_kernel[(len(rows),)](
        best, sharpness, largest, sums, tokens, log_probs, blocks,
        K=k, BLOCK_B=triton.next_power_of_2(blocks), BLOCK_C=candidates, num_warps=1 if candidates <= 512 else 4,
    )  # fmt: skip
    return tokens
