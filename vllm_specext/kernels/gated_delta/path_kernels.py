"""The gated delta rule along accepted paths in Triton, for all layers at once.

A program goes along a path as plain decoding does, with its part of the state in registers.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.gated_delta.kernel import EPSILON, gating
from vllm_specext.kernels.gated_delta.layer import GatedDeltaLayer
from vllm_specext.kernels.recurrent import BlockEnds, KeptRows
from vllm_specext.kernels.recurrent.arithmetic import block_of
from vllm_specext.kernels.recurrent.paths import ENTRIES, convolved_at, shift, table_of

BLOCK_V = 16
"""Values of a head that one program has."""


@triton.jit(do_not_specialize=["stride_path"])
def _follow_kernel(
    table_ptr, mixed_ptr, stride_layer, stride_row, gates_ptr, stride_gates_layer, stride_gates,
    conv_like_ptr, stride_conv, stride_channel, stride_place,
    state_like_ptr, stride_state, stride_head, stride_key, stride_value,
    weight_like_ptr, stride_weight, conv_bias_like_ptr, decay_like_ptr, bias_like_ptr, slot_like_ptr,
    path_ptr, stride_path, count_ptr, end_ptr, layers,
    ENDS: tl.constexpr,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, TAPS: tl.constexpr,
    BIAS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Grid ``(requests * layers, VALUE_HEADS, blocks of values)``: the first may be the most, because no other takes
    more than 65 535. Of what ends in ``like_ptr`` only the type is read."""
    head, block = tl.program_id(1), tl.program_id(2)
    layer, request = tl.program_id(0) % layers, tl.program_id(0) // layers
    entry = table_ptr + layer * ENTRIES
    conv_ptr = tl.load(entry).to(conv_like_ptr.dtype)
    state_ptr = tl.load(entry + 1).to(state_like_ptr.dtype)
    weight_ptr = tl.load(entry + 2).to(weight_like_ptr.dtype)
    conv_bias_ptr = tl.load(entry + 3).to(conv_bias_like_ptr.dtype)
    decay_ptr = tl.load(entry + 4).to(decay_like_ptr.dtype)
    bias_ptr = tl.load(entry + 5).to(bias_like_ptr.dtype)
    slot = tl.load(tl.load(entry + 6).to(slot_like_ptr.dtype) + request).to(tl.int64)
    conv_ptr += slot * stride_conv
    mixed_ptr += layer.to(tl.int64) * stride_layer
    gates_ptr += layer.to(tl.int64) * stride_gates_layer
    path_ptr += request * stride_path
    key, value = tl.arange(0, BLOCK_K), block * BLOCK_V + tl.arange(0, BLOCK_V)
    real_key, real_value = key < KEYS, value < VALUES
    key_channel = (KEY_HEADS + head // (VALUE_HEADS // KEY_HEADS)) * KEYS + key
    value_channel = 2 * KEY_HEADS * KEYS + head * VALUES + value
    state_ptr += head * stride_head
    inside = key[:, None] * stride_key + value[None, :] * stride_value
    places = state_ptr + slot * stride_state + inside
    if ENDS:
        end = tl.load(end_ptr + request)
        passed = tl.load(tl.load(entry + 7).to(slot_like_ptr.dtype) + request).to(tl.int64)
    real = real_key[:, None] & real_value[None, :]
    state = tl.load(places, mask=real, other=0).to(tl.float32)
    for place in range(tl.load(count_ptr + request)):
        keys = convolved_at(
            mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, weight_ptr, stride_weight, conv_bias_ptr,
            path_ptr, place, key_channel, real_key, TAPS, BIAS,
        )  # fmt: skip
        values = convolved_at(
            mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, weight_ptr, stride_weight, conv_bias_ptr,
            path_ptr, place, value_channel, real_value, TAPS, BIAS,
        )  # fmt: skip
        keys = keys * tl.rsqrt(tl.sum(keys * keys, 0) + EPSILON)
        gates = gates_ptr + tl.load(path_ptr + place) * stride_gates + head
        decay, beta = gating(tl.load(gates), tl.load(gates + VALUE_HEADS), decay_ptr, bias_ptr, head)
        state *= tl.exp(decay)
        updates = beta * (values - tl.sum(state * keys[:, None], 0))
        state += keys[:, None] * updates[None, :]
        if ENDS:  # noqa: SIM102 - without them the kernel has no end
            if place + 1 == end:
                there = state_ptr + passed * stride_state + inside
                tl.store(there, state.to(state_like_ptr.dtype.element_ty), mask=real)
    tl.store(places, state.to(state_like_ptr.dtype.element_ty), mask=real)


def advance(
    layers: Sequence[GatedDeltaLayer],
    kept: KeptRows,
    slots: Sequence[Tensor],
    path: Tensor,
    counts: Tensor,
    ends: BlockEnds | None = None,
) -> None:
    first, table = layers[0], table_of(layers, slots, ends)
    keys, values = first.states.shape[2:]
    block_v = block_of(values, BLOCK_V)
    _follow_kernel[len(path) * len(layers), first.heads, triton.cdiv(values, block_v)](
        table, kept.mixed, *kept.mixed.stride()[:2], kept.gates, *kept.gates.stride()[:2],
        first.conv_states, *first.conv_states.stride(), first.states, *first.states.stride(),
        first.conv_weight, first.conv_weight.stride(0), first.bias_argument, first.decay, first.step_bias,
        slots[0],
        path, path.stride(0), counts, counts if ends is None else ends.rows, len(layers), ENDS=ends is not None,
        KEY_HEADS=first.key_heads, VALUE_HEADS=first.heads, KEYS=keys, VALUES=values, TAPS=first.taps,
        BIAS=first.conv_bias is not None, BLOCK_K=block_of(keys), BLOCK_V=block_v, num_warps=4,
    )  # fmt: skip
    shift(table, layers, kept, slots, path, counts, ends)
