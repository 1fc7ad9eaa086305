"""The convolution along accepted paths in Triton, and what kernels of all layers know of each.

A kernel that has states go on along paths finds what a layer has in a table of addresses, so that one launch is enough
for all layers.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.pointers import Addresses
from vllm_specext.kernels.recurrent.convolution import BLOCK_C
from vllm_specext.kernels.recurrent.layer import RecurrentLayer
from vllm_specext.kernels.recurrent.rows import BlockEnds, KeptRows

ENTRIES = tl.constexpr(8)
"""Addresses that the table has for a layer: last inputs, states, weights of the convolution, its bias, decay, bias of
the step, slots, slots at block ends."""


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
def convolved_at(
    mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, weight_ptr, stride_weight, bias_ptr, path_ptr, place,
    channel, real, TAPS: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """``[channels]`` float32: what the convolution of the row at ``place`` of a path gives, rounded as it is there."""
    total = tl.zeros([channel.shape[0]], tl.float32)
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=real, other=0).to(tl.float32)
    for tap in tl.static_range(TAPS):
        weight = tl.load(weight_ptr + channel * stride_weight + tap, mask=real, other=0).to(tl.float32)
        total += weight * _input(
            mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, path_ptr, place - (TAPS - 1 - tap), channel,
            real, TAPS,
        )  # fmt: skip
    return (total * tl.sigmoid(total)).to(mixed_ptr.dtype.element_ty).to(tl.float32)


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


@triton.jit(do_not_specialize=["stride_path"])
def _shift_kernel(
    table_ptr, mixed_ptr, stride_layer, stride_row, conv_like_ptr, stride_conv, stride_channel, stride_place,
    slot_like_ptr, path_ptr, stride_path, count_ptr, end_ptr, layers,
    ENDS: tl.constexpr, CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Grid ``(requests * layers, blocks of channels)``: the last inputs of the convolution become those of the path.
    What is read lies after all that was written, by the same thread. Of what ends in ``like_ptr`` only the type is
    read."""
    layer, request = tl.program_id(0) % layers, tl.program_id(0) // layers
    entry = table_ptr + layer * ENTRIES
    slot = tl.load(tl.load(entry + 6).to(slot_like_ptr.dtype) + request).to(tl.int64)
    convs_ptr = tl.load(entry).to(conv_like_ptr.dtype)
    conv_ptr = convs_ptr + slot * stride_conv
    mixed_ptr += layer.to(tl.int64) * stride_layer
    path_ptr += request * stride_path
    channel = tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C)
    real = channel < CHANNELS
    count = tl.load(count_ptr + request)
    if ENDS:
        end = tl.load(end_ptr + request)
        passed = tl.load(tl.load(entry + 7).to(slot_like_ptr.dtype) + request).to(tl.int64)
        if (end <= count) & (passed != slot):
            _shift(
                mixed_ptr, stride_row, conv_ptr, convs_ptr + passed * stride_conv, stride_channel, stride_place,
                path_ptr, end, channel, real, TAPS,
            )  # fmt: skip
    _shift(
        mixed_ptr, stride_row, conv_ptr, conv_ptr, stride_channel, stride_place, path_ptr, count, channel, real, TAPS
    )


def shift(
    table: Tensor,
    layers: Sequence[RecurrentLayer],
    kept: KeptRows,
    slots: Sequence[Tensor],
    path: Tensor,
    counts: Tensor,
    ends: BlockEnds | None,
) -> None:
    """Have the convolutions' last inputs be those of the paths; the arguments are those of ``advance``, and the
    ``table`` of them."""
    first = layers[0]
    _shift_kernel[len(path) * len(layers), triton.cdiv(first.channels, BLOCK_C)](
        table, kept.mixed, *kept.mixed.stride()[:2], first.conv_states, *first.conv_states.stride(), slots[0],
        path, path.stride(0), counts, counts if ends is None else ends.rows, len(layers), ENDS=ends is not None,
        CHANNELS=first.channels, TAPS=first.taps, BLOCK_C=BLOCK_C,
    )  # fmt: skip


_TABLES: dict[tuple[int, ...], Addresses] = {}


def table_of(layers: Sequence[RecurrentLayer], slots: Sequence[Tensor], ends: BlockEnds | None) -> Tensor:
    """``[L * ENTRIES]`` int64: where the kernels find what each layer has. Raises ``ValueError`` for layers that are
    not alike."""
    passed = slots if ends is None else ends.slots
    entries = ((*_tensors(layer), *own) for layer, *own in zip(layers, slots, passed, strict=True))
    found = Addresses(tensor for entry in entries for tensor in entry)
    if found.key not in _TABLES:
        if len({_shapes(layer) for layer in layers}) > 1:
            raise ValueError("layers with recurrent states differ in shapes, strides or data types")
        # The caches may have moved, and then the table before is of no use.
        _TABLES.clear()
        _TABLES[found.key] = found
    return _TABLES[found.key].table


def _tensors(layer: RecurrentLayer) -> tuple[Tensor, ...]:
    return layer.conv_states, layer.states, layer.conv_weight, layer.bias_argument, layer.decay, layer.step_bias


def _shapes(layer: RecurrentLayer) -> tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]:
    return tuple((tensor.shape, tensor.stride(), tensor.dtype) for tensor in _tensors(layer))
