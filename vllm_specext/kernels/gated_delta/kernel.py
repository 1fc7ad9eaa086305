"""The gated delta rule over draft trees in Triton, two launches for a layer.

The first convolves rows. A program of the second has all rows of a request, one value head, and a block of its values.
Of the triangular system it knows that a path has few nodes: what the right side lacks reaches one level more with each
product by the system's matrix, so that as many products as a path has levels solve it, each on tensor cores. The
solution of a level does not change any more, so that rounding is that of solving row after row.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.gated_delta.layer import GatedDeltaLayer, GatedDeltaRows, KeptRows

EPSILON = tl.constexpr(1e-6)
FEW_NODES = 32
"""Up to so many nodes a program has more values of a head, without spilling registers."""
BLOCK_V, BLOCK_V_OF_MANY = 64, 32
"""Values of a head that one program has: of few nodes, and of many."""
BLOCK_C = 512
"""Channels of the convolution that one program has."""


@triton.jit
def gating(a, b, decay_ptr, bias_ptr, head):
    """Logarithms of the decay, and betas, of the rows' gates ``a`` and ``b``."""
    shifted = a.to(tl.float32) + tl.load(bias_ptr + head).to(tl.float32)
    # As torch's softplus does, above 20 it is what it is of.
    grown = tl.where(shifted > 20, shifted, tl.log(1 + tl.exp(tl.minimum(shifted, 20))))
    return -tl.exp(tl.load(decay_ptr + head).to(tl.float32)) * grown, tl.sigmoid(b.to(tl.float32))


@triton.jit
def _convolve_kernel(
    mixed_ptr, stride_row, a_ptr, stride_a, b_ptr, stride_b, weight_ptr, stride_weight,
    conv_ptr, stride_conv, stride_channel, stride_place, start_ptr, before_ptr, stride_before, slot_ptr,
    kept_ptr, stride_kept, gates_ptr, stride_gates, out_ptr, stride_out,
    CHANNELS: tl.constexpr, VALUE_HEADS: tl.constexpr, TAPS: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr,
):  # fmt: skip
    """Grid ``(blocks of channels, nodes, requests)``: rows after the convolution and its activation, in the model's
    data type as vLLM's kernels leave them; what they were is kept."""
    node, request = tl.program_id(1), tl.program_id(2)
    first = tl.load(start_ptr + request).to(tl.int64)
    if first + node >= tl.load(start_ptr + request + 1):
        return
    row = first + node
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    real = channel < CHANNELS
    conv_ptr += tl.load(slot_ptr + request).to(tl.int64) * stride_conv
    before_ptr += request * stride_before + node * (TAPS - 1)
    own = tl.load(mixed_ptr + row * stride_row + channel, mask=real, other=0)
    tl.store(kept_ptr + row * stride_kept + channel, own, mask=real)
    total = own.to(tl.float32) * tl.load(weight_ptr + channel * stride_weight + TAPS - 1, mask=real, other=0)
    for tap in tl.static_range(TAPS - 1):
        source = tl.load(before_ptr + TAPS - 2 - tap)
        if source >= 0:
            inputs = tl.load(mixed_ptr + (first + source) * stride_row + channel, mask=real, other=0).to(tl.float32)
        else:
            earlier = conv_ptr + channel * stride_channel + (TAPS - 1 + source) * stride_place
            inputs = tl.load(earlier, mask=real, other=0).to(tl.float32)
        total += inputs * tl.load(weight_ptr + channel * stride_weight + tap, mask=real, other=0)
    tl.store(out_ptr + row * stride_out + channel, (total * tl.sigmoid(total)).to(out_ptr.dtype.element_ty), mask=real)
    if tl.program_id(0) == 0:
        head = tl.arange(0, BLOCK_H)
        some = head < VALUE_HEADS
        gates = gates_ptr + row * stride_gates + head
        tl.store(gates, tl.load(a_ptr + row * stride_a + head, mask=some, other=0), mask=some)
        tl.store(gates + VALUE_HEADS, tl.load(b_ptr + row * stride_b + head, mask=some, other=0), mask=some)


@triton.jit
def _halves(numbers):
    """Two numbers of bfloat16, whose sum has sixteen bits of each."""
    high = numbers.to(tl.bfloat16)
    return high, (numbers - high.to(tl.float32)).to(tl.bfloat16)


@triton.jit
def _product(rows, state, PRECISION: tl.constexpr):
    """``rows @ state`` with a state in float32. Rows in bfloat16 are exact on tensor cores, and the state in two such
    numbers has twice the bits that the result is rounded to."""
    if rows.dtype == tl.bfloat16:
        high, low = _halves(state)
        product = tl.dot(rows, high) + tl.dot(rows, low)
    else:
        product = tl.dot(rows.to(tl.float32), state, input_precision=PRECISION)
    return product


@triton.jit
def _mixture(weights, rows, LIKE: tl.constexpr, PRECISION: tl.constexpr):
    """``weights @ rows``, both float32, as exact as ``_product`` with rows of the type ``LIKE``."""
    if LIKE == tl.bfloat16:  # noqa: SIM300 - a compile-time argument
        high, low = _halves(weights)
        more, less = _halves(rows)
        product = tl.dot(high, more) + (tl.dot(high, less) + tl.dot(low, more))
    else:
        product = tl.dot(weights, rows, input_precision=PRECISION)
    return product


@triton.jit
def _likeness(rows, others, PRECISION: tl.constexpr):
    if rows.dtype == tl.bfloat16:
        product = tl.dot(rows, tl.trans(others))
    else:
        product = tl.dot(rows.to(tl.float32), tl.trans(others.to(tl.float32)), input_precision=PRECISION)
    return product


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

    word = tl.load(
        visible_ptr + request * stride_visible + node[:, None] * WORDS + (node // 32)[None, :],
        mask=own[:, None] & ((node // 32) < WORDS)[None, :], other=0,
    )  # fmt: skip
    sees = ((word >> (node % 32)[None, :]) & 1) > 0
    sees = sees & own[:, None] & own[None, :] & (node[:, None] >= node[None, :])
    total = tl.sum(tl.where(sees, decay[None, :], 0.0), 1)
    # What is not seen may have decayed less, so that its exponential has no bound.
    kept = tl.exp(tl.where(sees, total[:, None] - total[None, :], float("-inf")))
    since = tl.exp(total)

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
    system = _likeness(keys, keys, PRECISION) * kept * (beta * shorter)[:, None] * shorter[None, :]
    system = tl.where(node[:, None] > node[None, :], system, 0.0)
    right = beta[:, None] * (values.to(tl.float32) - (since * shorter)[:, None] * _product(keys, state, PRECISION))
    updates = right
    for _ in range(levels):
        updates = right - _mixture(system, updates, keys.dtype, PRECISION)
    query = tl.load(rows_ptr + (key_head * KEYS + key)[None, :], mask=of_keys, other=0)
    scaled = _over_length(query) * (KEYS**-0.5)
    scores = _likeness(query, keys, PRECISION) * kept * scaled[:, None] * shorter[None, :]
    results = (since * scaled)[:, None] * _product(query, state, PRECISION)
    results += _mixture(scores, updates, keys.dtype, PRECISION)
    out_ptr += (first + node)[:, None] * stride_out + head * stride_out_head + value[None, :]
    tl.store(out_ptr, results.to(out_ptr.dtype.element_ty), mask=own[:, None] & real_value[None, :])


def attend(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    layer: GatedDeltaLayer,
    rows: GatedDeltaRows,
    slots: Tensor,
    kept: KeptRows,
    place: int,
    out: Tensor,
) -> None:
    requests, nodes, words = rows.visible.shape
    keys, values = layer.states.shape[2:]
    block_n = max(16, triton.next_power_of_2(nodes))
    block_k, block_v = blocks(layer, BLOCK_V if nodes <= FEW_NODES else BLOCK_V_OF_MANY)
    channels, heads = layer.conv_weight.shape[0], layer.value_heads
    convolved = torch.empty(len(mixed), channels, dtype=mixed.dtype, device=mixed.device)
    own, gates = kept.mixed[place], kept.gates[place]
    _convolve_kernel[triton.cdiv(channels, BLOCK_C), nodes, requests](
        mixed, mixed.stride(0), a, a.stride(0), b, b.stride(0), layer.conv_weight, layer.conv_weight.stride(0),
        layer.conv_states, *layer.conv_states.stride(), rows.starts, rows.before, rows.before.stride(0), slots,
        own, own.stride(0), gates, gates.stride(0), convolved, convolved.stride(0),
        CHANNELS=channels, VALUE_HEADS=heads, TAPS=layer.taps, BLOCK_C=BLOCK_C, BLOCK_H=triton.next_power_of_2(heads),
        num_warps=4,
    )  # fmt: skip
    _attend_kernel[triton.cdiv(values, block_v), heads, requests](
        convolved, convolved.stride(0), gates, gates.stride(0), layer.decay, layer.step_bias,
        layer.states, *layer.states.stride(), rows.starts, rows.visible, rows.visible.stride(0), slots,
        out, *out.stride()[:2], rows.levels,
        KEY_HEADS=layer.key_heads, VALUE_HEADS=heads, KEYS=keys, VALUES=values,
        WORDS=words, BLOCK_N=block_n, BLOCK_K=block_k, BLOCK_V=block_v,
        # In tf32 alone, products would be less exact than the state, which is float32 for that reason.
        PRECISION="ieee" if mixed.dtype == torch.float32 else "tf32x3",
        num_warps=4 if block_n == 16 else 8,
    )  # fmt: skip


def blocks(layer: GatedDeltaLayer, most: int) -> tuple[int, int]:
    """Keys of one head, and the values that one program has, at ``most`` so many; products need sixteen of each."""
    keys, values = layer.states.shape[2:]
    return max(16, triton.next_power_of_2(keys)), max(16, min(most, triton.next_power_of_2(values)))
