"""The state space rule of Mamba-2 over draft trees in Triton, after the convolution.

A program has all rows of a request, one head, and a block of its values. What the rows get of each other are products
on tensor cores, as in attention, with decays in the place of a softmax.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.recurrent import KeptRows, TreeRows
from vllm_specext.kernels.recurrent.arithmetic import (
    block_of,
    decays,
    likeness,
    precision,
    product,
    softplus,
    weighted,
)
from vllm_specext.kernels.recurrent.convolution import convolve
from vllm_specext.kernels.state_space.layer import StateSpaceLayer

FEW_NODES = 32
"""Up to so many nodes a program has more values of a head, without spilling registers."""
BLOCK_V, BLOCK_V_OF_MANY = 64, 32
"""Values of a head that one program has: of few nodes, and of many."""
BLOCK_K = 64
"""Width of a state that one product is over."""


@triton.jit
def _attend_kernel(
    rows_ptr, stride_row, steps_ptr, stride_steps, decay_ptr, bias_ptr, skip_ptr,
    state_ptr, stride_state, stride_head, stride_value, stride_key,
    start_ptr, visible_ptr, stride_visible, slot_ptr, out_ptr, stride_out, stride_out_head,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    WORDS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid ``(blocks of values, HEADS, requests)``; ``rows_ptr`` are rows after the convolution."""
    block, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(start_ptr + request).to(tl.int64)
    count = tl.load(start_ptr + request + 1) - first
    if count == 0:
        return
    node = tl.arange(0, BLOCK_N)
    own = node < count
    value = block * BLOCK_V + tl.arange(0, BLOCK_V)
    real_value = value < VALUES
    rows_ptr += (first + node)[:, None] * stride_row
    step = tl.load(steps_ptr + (first + node) * stride_steps + head, mask=own, other=0).to(tl.float32)
    step = softplus(step + tl.load(bias_ptr + head).to(tl.float32))
    decay = step * tl.load(decay_ptr + head).to(tl.float32)
    kept, since = decays(visible_ptr + request * stride_visible, node, own, decay, WORDS)

    slot = tl.load(slot_ptr + request).to(tl.int64)
    state_ptr += slot * stride_state + head * stride_head + value[None, :] * stride_value
    vector_ptr = rows_ptr + HEADS * VALUES + (head // (HEADS // GROUPS)) * KEYS
    results = tl.zeros([BLOCK_N, BLOCK_V], tl.float32)
    scores = tl.zeros([BLOCK_N, BLOCK_N], tl.float32)
    for begin in range(0, KEYS, BLOCK_K):
        key = begin + tl.arange(0, BLOCK_K)
        real_key = key < KEYS
        of_keys = own[:, None] & real_key[None, :]
        state = tl.load(
            state_ptr + key[:, None] * stride_key, mask=real_key[:, None] & real_value[None, :], other=0
        ).to(tl.float32)
        inward = tl.load(vector_ptr + key[None, :], mask=of_keys, other=0)
        outward = tl.load(vector_ptr + GROUPS * KEYS + key[None, :], mask=of_keys, other=0)
        results += product(outward, state, PRECISION)
        scores += likeness(outward, inward, PRECISION)
    values = tl.load(rows_ptr + (head * VALUES + value)[None, :], mask=own[:, None] & real_value[None, :], other=0)
    results *= since[:, None]
    results += weighted(scores * kept * step[None, :], values, PRECISION)
    results += values.to(tl.float32) * tl.load(skip_ptr + head).to(tl.float32)
    out_ptr += (first + node)[:, None] * stride_out + head * stride_out_head + value[None, :]
    tl.store(out_ptr, results.to(out_ptr.dtype.element_ty), mask=own[:, None] & real_value[None, :])


def attend(
    mixed: Tensor,
    gates: Sequence[Tensor],
    layer: StateSpaceLayer,
    rows: TreeRows,
    slots: Tensor,
    kept: KeptRows,
    place: int,
    out: Tensor,
) -> None:
    requests, nodes, words = rows.visible.shape
    values, keys = layer.states.shape[2:]
    block_n = block_of(nodes)
    block_k = block_of(keys, BLOCK_K)
    block_v = block_of(values, BLOCK_V if nodes <= FEW_NODES else BLOCK_V_OF_MANY)
    convolved = convolve(mixed, gates, layer, rows, slots, kept, place)
    steps = kept.gates[place]
    _attend_kernel[triton.cdiv(values, block_v), layer.heads, requests](
        convolved, convolved.stride(0), steps, steps.stride(0), layer.decay, layer.step_bias, layer.skip,
        layer.states, *layer.states.stride(), rows.starts, rows.visible, rows.visible.stride(0), slots,
        out, *out.stride()[:2],
        GROUPS=layer.groups, HEADS=layer.heads, KEYS=keys, VALUES=values,
        WORDS=words, BLOCK_N=block_n, BLOCK_K=block_k, BLOCK_V=block_v, PRECISION=precision(mixed.dtype),
        num_warps=4 if block_n == 16 else 8,
    )  # fmt: skip
