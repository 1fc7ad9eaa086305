"""The convolution of the rows of draft trees in Triton, and keeping what the rows were."""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.recurrent.layer import RecurrentLayer
from vllm_specext.kernels.recurrent.rows import KeptRows, TreeRows

BLOCK_C = 512
"""Channels of the convolution that one program has."""


@triton.jit
def _convolve_kernel(
    mixed_ptr, stride_row, gate_ptr, stride_gate, gate2_ptr, stride_gate2, weight_ptr, stride_weight, bias_ptr,
    conv_ptr, stride_conv, stride_channel, stride_place, start_ptr, before_ptr, stride_before, slot_ptr,
    kept_ptr, stride_kept, gates_ptr, stride_gates, out_ptr, stride_out,
    CHANNELS: tl.constexpr, HEADS: tl.constexpr, GATES: tl.constexpr, TAPS: tl.constexpr, BIAS: tl.constexpr,
    BLOCK_C: tl.constexpr, BLOCK_H: tl.constexpr,
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
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=real, other=0)
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
        some = head < HEADS
        gates = gates_ptr + row * stride_gates + head
        tl.store(gates, tl.load(gate_ptr + row * stride_gate + head, mask=some, other=0), mask=some)
        if GATES == 2:
            tl.store(gates + HEADS, tl.load(gate2_ptr + row * stride_gate2 + head, mask=some, other=0), mask=some)


def convolve(
    mixed: Tensor,
    gates: Sequence[Tensor],
    layer: RecurrentLayer,
    rows: TreeRows,
    slots: Tensor,
    kept: KeptRows,
    place: int,
) -> Tensor:
    """The rows ``mixed`` ``[T, C]`` after the convolution; what they were, and their one or two ``gates`` ``[T, H]``,
    are kept at ``place``."""
    requests, nodes, _ = rows.visible.shape
    out = torch.empty(len(mixed), layer.channels, dtype=mixed.dtype, device=mixed.device)
    own, into = kept.mixed[place], kept.gates[place]
    _convolve_kernel[triton.cdiv(layer.channels, BLOCK_C), nodes, requests](
        mixed, mixed.stride(0), gates[0], gates[0].stride(0), gates[-1], gates[-1].stride(0),
        layer.conv_weight, layer.conv_weight.stride(0), layer.bias_argument,
        layer.conv_states, *layer.conv_states.stride(), rows.starts, rows.before, rows.before.stride(0), slots,
        own, own.stride(0), into, into.stride(0), out, out.stride(0),
        CHANNELS=layer.channels, HEADS=layer.heads, GATES=len(gates), TAPS=layer.taps,
        BIAS=layer.conv_bias is not None, BLOCK_C=BLOCK_C, BLOCK_H=triton.next_power_of_2(layer.heads), num_warps=4,
    )  # fmt: skip
    return out
