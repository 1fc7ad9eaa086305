"""The gated delta rule along accepted paths in Triton, two launches for all layers.

A program of the first goes along a path as plain decoding does, with its part of the state in registers. The second
keeps the path's last inputs for the next convolution. Both find what a layer has in a table of addresses.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Sequence

import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.gated_delta.kernel import BLOCK_C, EPSILON, blocks, gating
from vllm_specext.kernels.gated_delta.layer import BlockEnds, GatedDeltaLayer, KeptRows
from vllm_specext.kernels.pointers import Addresses

BLOCK_V = 16
"""Values of a head that one program has."""
ENTRIES = tl.constexpr(7)
"""Addresses that the table has for a layer: last inputs, states, weights, decay, bias, slots, slots at block ends."""


@triton.jit
def _input(
    mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, path_ptr, place, channel, real, TAPS: tl.constexpr
):
    """Inputs ``[channels]`` of the convolution at ``place`` of a path; before it where that is negative."""
    if place >= 0:
        row = tl.load(path_ptr + place)
        inputs = tl.load(mixed_ptr + row * stride_row + channel, mask=real, other=0).to(tl.float32)
    else:
        earlier = conv_ptr + channel * stride_channel + (TAPS - 1 + place) * stride_place
        inputs = tl.load(earlier, mask=real, other=0).to(tl.float32)
    return inputs


@triton.jit
def _convolved_at(
    mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, weight_ptr, stride_weight, path_ptr, place, channel,
    real, TAPS: tl.constexpr,
):  # fmt: skip
    total = tl.zeros([channel.shape[0]], tl.float32)
    for tap in tl.static_range(TAPS):
        weight = tl.load(weight_ptr + channel * stride_weight + tap, mask=real, other=0).to(tl.float32)
        total += weight * _input(
            mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, path_ptr, place - (TAPS - 1 - tap), channel,
            real, TAPS,
        )  # fmt: skip
    return (total * tl.sigmoid(total)).to(mixed_ptr.dtype.element_ty).to(tl.float32)


@triton.jit
def _follow_kernel(
    table_ptr, mixed_ptr, stride_layer, stride_row, gates_ptr, stride_gates_layer, stride_gates,
    conv_like_ptr, stride_conv, stride_channel, stride_place,
    state_like_ptr, stride_state, stride_head, stride_key, stride_value,
    weight_like_ptr, stride_weight, decay_like_ptr, bias_like_ptr, slot_like_ptr,
    path_ptr, stride_path, count_ptr, end_ptr, layers,
    ENDS: tl.constexpr,
    KEY_HEADS: tl.constexpr, VALUE_HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, TAPS: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Grid ``(blocks of values, VALUE_HEADS, requests * layers)``. Of what ends in ``like_ptr`` only the type is
    read."""
    block, head = tl.program_id(0), tl.program_id(1)
    layer, request = tl.program_id(2) % layers, tl.program_id(2) // layers
    entry = table_ptr + layer * ENTRIES
    conv_ptr = tl.load(entry).to(conv_like_ptr.dtype)
    state_ptr = tl.load(entry + 1).to(state_like_ptr.dtype)
    weight_ptr = tl.load(entry + 2).to(weight_like_ptr.dtype)
    decay_ptr = tl.load(entry + 3).to(decay_like_ptr.dtype)
    bias_ptr = tl.load(entry + 4).to(bias_like_ptr.dtype)
    slot = tl.load(tl.load(entry + 5).to(slot_like_ptr.dtype) + request).to(tl.int64)
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
        passed = tl.load(tl.load(entry + 6).to(slot_like_ptr.dtype) + request).to(tl.int64)
    real = real_key[:, None] & real_value[None, :]
    state = tl.load(places, mask=real, other=0).to(tl.float32)
    for place in range(tl.load(count_ptr + request)):
        keys = _convolved_at(
            mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, weight_ptr, stride_weight, path_ptr, place,
            key_channel, real_key, TAPS,
        )  # fmt: skip
        values = _convolved_at(
            mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, weight_ptr, stride_weight, path_ptr, place,
            value_channel, real_value, TAPS,
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


@triton.jit
def _shift(
    mixed_ptr, stride_row, conv_ptr, into_ptr, stride_channel, stride_place, path_ptr, count, channel, real,
    TAPS: tl.constexpr,
):  # fmt: skip
    """Have ``into_ptr`` hold the last inputs after ``count`` rows of a path, before which ``conv_ptr`` holds them."""
    for kept in tl.static_range(TAPS - 1):
        inputs = _input(
            mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, path_ptr, count + kept - (TAPS - 1), channel,
            real, TAPS,
        )  # fmt: skip
        places = into_ptr + channel * stride_channel + kept * stride_place
        tl.store(places, inputs.to(into_ptr.dtype.element_ty), mask=real)


@triton.jit
def _shift_kernel(
    table_ptr, mixed_ptr, stride_layer, stride_row, conv_like_ptr, stride_conv, stride_channel, stride_place,
    slot_like_ptr, path_ptr, stride_path, count_ptr, end_ptr, layers,
    ENDS: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Grid ``(blocks of channels, requests * layers)``: the last inputs of the convolution become those of the path.
    What is read lies after all that was written, by the same thread."""
    layer, request = tl.program_id(1) % layers, tl.program_id(1) // layers
    entry = table_ptr + layer * ENTRIES
    slot = tl.load(tl.load(entry + 5).to(slot_like_ptr.dtype) + request).to(tl.int64)
    convs_ptr = tl.load(entry).to(conv_like_ptr.dtype)
    conv_ptr = convs_ptr + slot * stride_conv
    mixed_ptr += layer.to(tl.int64) * stride_layer
    path_ptr += request * stride_path
    channel = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    real = channel < CHANNELS
    count = tl.load(count_ptr + request)
    if ENDS:
        end = tl.load(end_ptr + request)
        passed = tl.load(tl.load(entry + 6).to(slot_like_ptr.dtype) + request).to(tl.int64)
        if (end <= count) & (passed != slot):
            _shift(
                mixed_ptr, stride_row, conv_ptr, convs_ptr + passed * stride_conv, stride_channel, stride_place,
                path_ptr, end, channel, real, TAPS,
            )  # fmt: skip
    _shift(
        mixed_ptr, stride_row, conv_ptr, conv_ptr, stride_channel, stride_place, path_ptr, count, channel, real, TAPS
    )


def advance(
    layers: Sequence[GatedDeltaLayer],
    kept: KeptRows,
    slots: Sequence[Tensor],
    path: Tensor,
    counts: Tensor,
    ends: BlockEnds | None = None,
) -> None:
    first, requests = layers[0], len(path)
    table = _table(layers, slots, slots if ends is None else ends.slots)
    rows = counts if ends is None else ends.rows
    keys, values = first.states.shape[2:]
    block_k, block_v = blocks(first, BLOCK_V)
    conv = first.conv_states, *first.conv_states.stride()
    mixed = kept.mixed, *kept.mixed.stride()[:2]
    _follow_kernel[triton.cdiv(values, block_v), first.value_heads, requests * len(layers)](
        table, *mixed, kept.gates, *kept.gates.stride()[:2], *conv, first.states, *first.states.stride(),
        first.conv_weight, first.conv_weight.stride(0), first.decay, first.step_bias, slots[0],
        path, path.stride(0), counts, rows, len(layers), ENDS=ends is not None,
        KEY_HEADS=first.key_heads, VALUE_HEADS=first.value_heads, KEYS=keys, VALUES=values, TAPS=first.taps,
        BLOCK_K=block_k, BLOCK_V=block_v, num_warps=4,
    )  # fmt: skip
    channels = kept.mixed.shape[2]
    _shift_kernel[triton.cdiv(channels, BLOCK_C), requests * len(layers)](
        table, *mixed, *conv, slots[0], path, path.stride(0), counts, rows, len(layers), ENDS=ends is not None,
        CHANNELS=channels, TAPS=first.taps, BLOCK_C=BLOCK_C,
    )  # fmt: skip


_TABLES: dict[tuple[int, ...], Addresses] = {}


def _table(layers: Sequence[GatedDeltaLayer], slots: Sequence[Tensor], ends: Sequence[Tensor]) -> Tensor:
    """``[L * ENTRIES]`` int64: where the kernels find what each layer has. Raises ``ValueError`` for layers that are
    not alike."""
    entries = ((*_tensors(layer), *own) for layer, *own in zip(layers, slots, ends, strict=True))
    found = Addresses(tensor for entry in entries for tensor in entry)
    if found.key not in _TABLES:
        if len({_shapes(layer) for layer in layers}) > 1:
            raise ValueError("layers with a gated delta rule differ in shapes, strides or data types")
        # The caches may have moved, and then the table before is of no use.
        _TABLES.clear()
        _TABLES[found.key] = found
    return _TABLES[found.key].table


def _tensors(layer: GatedDeltaLayer) -> tuple[Tensor, ...]:
    return layer.conv_states, layer.states, layer.conv_weight, layer.decay, layer.step_bias


def _shapes(layer: GatedDeltaLayer) -> tuple[object, ...]:
    return tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in _tensors(layer))
