"""What the Triton kernels of recurrent layers compute alike."""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl


@triton.jit
def softplus(numbers):
    """As torch's, above 20 it is what it is of."""
    return tl.where(numbers > 20, numbers, tl.log(1 + tl.exp(tl.minimum(numbers, 20))))


@triton.jit
def decays(visible_ptr, node, own, decay, WORDS: tl.constexpr):
    """How much of what a row left is there at each other that sees it, ``[N, N]``, and of the state before them,
    ``[N]``. ``decay``: logarithms of what the rows ``own`` leave of the state."""
    word = tl.load(
        visible_ptr + node[:, None] * WORDS + (node // 32)[None, :],
        mask=own[:, None] & ((node // 32) < WORDS)[None, :], other=0,
    )  # fmt: skip
    sees = ((word >> (node % 32)[None, :]) & 1) > 0
    sees = sees & own[:, None] & own[None, :] & (node[:, None] >= node[None, :])
    total = tl.sum(tl.where(sees, decay[None, :], 0.0), 1)
    # What is not seen may have decayed less, so that its exponential has no bound.
    return tl.exp(tl.where(sees, total[:, None] - total[None, :], float("-inf"))), tl.exp(total)


@triton.jit
def _halves(numbers):
    """Two numbers of bfloat16, whose sum has sixteen bits of each."""
    high = numbers.to(tl.bfloat16)
    return high, (numbers - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def product(rows, state, PRECISION: tl.constexpr):
    """``rows @ state`` with a state in float32. Rows in bfloat16 are exact on tensor cores, and the state in two such
    numbers has twice the bits that the result is rounded to."""
    if rows.dtype == tl.bfloat16:
        high, low = _halves(state)
        result = tl.dot(rows, high) + tl.dot(rows, low)
    else:
        result = tl.dot(rows.to(tl.float32), state, input_precision=PRECISION)
    return result


@triton.jit
def weighted(weights, rows, PRECISION: tl.constexpr):
    """``weights @ rows`` with weights in float32, as exact as ``product``."""
    if rows.dtype == tl.bfloat16:
        high, low = _halves(weights)
        result = tl.dot(high, rows) + tl.dot(low, rows)
    else:
        result = tl.dot(weights, rows.to(tl.float32), input_precision=PRECISION)
    return result


@triton.jit
def mixture(weights, rows, LIKE: tl.constexpr, PRECISION: tl.constexpr):
    """``weights @ rows``, both float32, as exact as ``product`` with rows of the type ``LIKE``."""
    if LIKE == tl.bfloat16:  # noqa: SIM300 - a compile-time argument
        high, low = _halves(weights)
        more, less = _halves(rows)
        result = tl.dot(high, more) + (tl.dot(high, less) + tl.dot(low, more))
    else:
        result = tl.dot(weights, rows, input_precision=PRECISION)
    return result


@triton.jit
def likeness(rows, others, PRECISION: tl.constexpr):
    if rows.dtype == tl.bfloat16:
        result = tl.dot(rows, tl.trans(others))
    else:
        result = tl.dot(rows.to(tl.float32), tl.trans(others.to(tl.float32)), input_precision=PRECISION)
    return result


@triton.jit
def round_by_chance(numbers, seed, places):
    """Numbers of float16 next to ``numbers``, of float32: each the larger the likelier, the nearer it is, so that what
    is added up over many steps has no bias. ``places``: a number for each, int32."""
    size = tl.abs(numbers)
    exponent = (size.to(tl.int32, bitcast=True) >> 23) - 127
    # Below its normal numbers float16 has the same distance between all.
    distance = ((tl.maximum(exponent, -14) - 10 + 127) << 23).to(tl.float32, bitcast=True)
    rounded = tl.floor(size / distance + tl.rand(seed, places)) * distance
    return tl.where(numbers < 0, -rounded, rounded).to(tl.float16)


def precision(dtype: torch.dtype) -> str:
    """Of products of rows of this type. In tf32 alone they would be less exact than the state, which is float32 for
    that reason."""
    return "ieee" if dtype == torch.float32 else "tf32x3"


def block_of(size: int, most: int | None = None) -> int:
    """How many of ``size`` columns or rows a program has, ``most`` at most; products need sixteen of each."""
    whole = triton.next_power_of_2(size)
    return max(16, whole if most is None else min(most, whole))
