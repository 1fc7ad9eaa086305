"""The gated delta rule over draft trees in Triton, after the convolution.

A program has all rows of a request, one value head, and a block of its values. Of the triangular system it knows that a
path has few nodes: what the right side lacks reaches one level more with each product by the system's matrix, so that
as many products as a path has levels solve it, each on tensor cores. The solution of a level does not change any more,
so that rounding is that of solving row after row.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.gated_delta.layer import GatedDeltaLayer
from vllm_specext.kernels.recurrent import KeptRows, TreeRows
from vllm_specext.kernels.recurrent.arithmetic import (
    block_of,
    decays,
    likeness,
    mixture,
    precision,
    product,
    softplus,
)
from vllm_specext.kernels.recurrent.convolution import convolve

EPSILON = tl.constexpr(1e-6)
FEW_NODES = 32
"""Up to so many nodes a program has more values of a head, without spilling registers."""
BLOCK_V, BLOCK_V_OF_MANY = 64, 32
"""Values of a head that one program has: of few nodes, and of many."""


@triton.jit
def gating(a, b, decay_ptr, bias_ptr, head):
    """Logarithms of the decay, and betas, of the rows' gates ``a`` and ``b``."""
    grown = softplus(a.to(tl.float32) + tl.load(bias_ptr + head).to(tl.float32))
    return -tl.exp(tl.load(decay_ptr + head).to(tl.float32)) * grown, tl.sigmoid(b.to(tl.float32))


@triton.jit
def _over_length(rows):
    """One over the length of each row."""
    rows = rows.to(tl.float32)
    return tl.rsqrt(tl.sum(rows * rows, 1) + EPSILON)


@triton.jit(do_not_specialize=["levels"])
def _attend_kernel(
    rows_ptr, stride_row, gates_ptr, stride_gates, decay_ptr, bias_ptr,
    state_ptr, stride_state, stride_head, stride_key, stride_value,
    start_ptr, visible_ptr, stride_visible, slot_ptr, out_ptr, stride_out, stride_out_head, levels,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr,
    WORDS: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Grid ``(blocks of values, VALUE_HEADS, requests)``; ``rows_ptr`` are rows after the convolution."""
    block, head, request = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    first = tl.load(start_ptr + request).to(tl.int64)
    count = tl.load(start_ptr + request + 1) - first
    if count == 0:
        return
    node = tl.arange(0, BLOCK_N)
    own = node < count
    key, value = tl.arange(0, BLOCK_K), block * BLOCK_V + tl.arange(0, BLOCK_V)
    real_value = value < VALUES
    key_head = head // (VALUE_HEADS // KEY_HEADS)
    rows_ptr += (first + node)[:, None] * stride_row
    of_keys = own[:, None] & (key < KEYS)[None, :]
    gates_ptr += (first + node) * stride_gates + head
    a = tl.load(gates_ptr, mask=own, other=0)
    b = tl.load(gates_ptr + VALUE_HEADS, mask=own, other=0)
    decay, beta = gating(a, b, decay_ptr, bias_ptr, head)
    kept, since = decays(visible_ptr + request * stride_visible, node, own, decay, WORDS)

    slot = tl.load(slot_ptr + request).to(tl.int64)
    state_ptr += slot * stride_state + head * stride_head + key[:, None] * stride_key + value[None, :] * stride_value
    state = tl.load(state_ptr, mask=(key < KEYS)[:, None] & real_value[None, :], other=0).to(tl.float32)
    keys = tl.load(rows_ptr + ((KEY_HEADS + key_head) * KEYS + key)[None, :], mask=of_keys, other=0)
    values = tl.load(
        rows_ptr + (2 * KEY_HEADS * KEYS + head * VALUES + value)[None, :],
        mask=own[:, None] & real_value[None, :], other=0,
    )  # fmt: skip
    # Keys are used at length one; products are scaled afterwards, so that they are of what the rows hold.
    shorter = _over_length(keys)
    system = likeness(keys, keys, PRECISION) * kept * (beta * shorter)[:, None] * shorter[None, :]
    system = tl.where(node[:, None] > node[None, :], system, 0.0)
    right = beta[:, None] * (values.to(tl.float32) - (since * shorter)[:, None] * product(keys, state, PRECISION))
    updates = right
    for _ in range(levels):
        updates = right - mixture(system, updates, keys.dtype, PRECISION)
    query = tl.load(rows_ptr + (key_head * KEYS + key)[None, :], mask=of_keys, other=0)
    scaled = _over_length(query) * (KEYS**-0.5)
    scores = likeness(query, keys, PRECISION) * kept * scaled[:, None] * shorter[None, :]
    results = (since * scaled)[:, None] * product(query, state, PRECISION)
    results += mixture(scores, updates, keys.dtype, PRECISION)
    out_ptr += (first + node)[:, None] * stride_out + head * stride_out_head + value[None, :]
    tl.store(out_ptr, results.to(out_ptr.dtype.element_ty), mask=own[:, None] & real_value[None, :])


def attend(
    mixed: Tensor,
    gates: Sequence[Tensor],
    layer: GatedDeltaLayer,
    rows: TreeRows,
    slots: Tensor,
    kept: KeptRows,
    place: int,
    out: Tensor,
) -> None:
    requests, nodes, words = rows.visible.shape
    keys, values = layer.states.shape[2:]
    block_n = block_of(nodes)
    block_v = block_of(values, BLOCK_V if nodes <= FEW_NODES else BLOCK_V_OF_MANY)
    convolved = convolve(mixed, gates, layer, rows, slots, kept, place)
    own = kept.gates[place]
    _attend_kernel[triton.cdiv(values, block_v), layer.heads, requests](
        convolved, convolved.stride(0), own, own.stride(0), layer.decay, layer.step_bias,
        layer.states, *layer.states.stride(), rows.starts, rows.visible, rows.visible.stride(0), slots,
        out, *out.stride()[:2], rows.levels,
        KEY_HEADS=layer.key_heads, VALUE_HEADS=layer.heads, KEYS=keys, VALUES=values,
        WORDS=words, BLOCK_N=block_n, BLOCK_K=block_of(keys), BLOCK_V=block_v, PRECISION=precision(mixed.dtype),
        num_warps=4 if block_n == 16 else 8,
    )  # fmt: skip
