"""The state space rule of Mamba-2 along accepted paths in Triton, for all layers at once.

A program goes along a path as plain decoding does, with its part of the state in registers.
"""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Sequence
from itertools import count

import triton
import triton.language as tl
from torch import Tensor

from vllm_specext.kernels.recurrent import BlockEnds, KeptRows
from vllm_specext.kernels.recurrent.arithmetic import block_of, round_by_chance, softplus
from vllm_specext.kernels.recurrent.paths import ENTRIES, convolved_at, shift, table_of
from vllm_specext.kernels.state_space.layer import StateSpaceLayer

BLOCK_V = 16
"""Values of a head that one program has."""
_SEEDS = count()
"""Of roundings, one for each step."""


@triton.jit(do_not_specialize=["stride_path", "seed"])
def _follow_kernel(
    table_ptr, mixed_ptr, stride_layer, stride_row, steps_ptr, stride_steps_layer, stride_steps,
    conv_like_ptr, stride_conv, stride_channel, stride_place,
    state_like_ptr, stride_state, stride_head, stride_value, stride_key,
    weight_like_ptr, stride_weight, conv_bias_like_ptr, decay_like_ptr, bias_like_ptr, slot_like_ptr,
    path_ptr, stride_path, count_ptr, end_ptr, layers, seed,
    ENDS: tl.constexpr, BY_CHANCE: tl.constexpr,
    GROUPS: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, VALUES: tl.constexpr, TAPS: tl.constexpr,
    BIAS: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_V: tl.constexpr,
):  # fmt: skip
    """Grid ``(requests * layers, HEADS, blocks of values)``: the first may be the most, because no other takes more
    than 65 535. Of what ends in ``like_ptr`` only the type is read."""
    head, block = tl.program_id(1), tl.program_id(2)
    layer, request = tl.program_id(0) % layers, tl.program_id(0) // layers
    entry = table_ptr + layer * ENTRIES
    conv_ptr = tl.load(entry).to(conv_like_ptr.dtype)
    state_ptr = tl.load(entry + 1).to(state_like_ptr.dtype)
    weight_ptr = tl.load(entry + 2).to(weight_like_ptr.dtype)
    conv_bias_ptr = tl.load(entry + 3).to(conv_bias_like_ptr.dtype)
    rate = tl.load(tl.load(entry + 4).to(decay_like_ptr.dtype) + head).to(tl.float32)
    bias = tl.load(tl.load(entry + 5).to(bias_like_ptr.dtype) + head).to(tl.float32)
    slot = tl.load(tl.load(entry + 6).to(slot_like_ptr.dtype) + request).to(tl.int64)
    conv_ptr += slot * stride_conv
    mixed_ptr += layer.to(tl.int64) * stride_layer
    steps_ptr += layer.to(tl.int64) * stride_steps_layer + head
    path_ptr += request * stride_path
    key, value = tl.arange(0, BLOCK_K), block * BLOCK_V + tl.arange(0, BLOCK_V)
    real_key, real_value = key < KEYS, value < VALUES
    key_channel = HEADS * VALUES + (head // (HEADS // GROUPS)) * KEYS + key
    value_channel = head * VALUES + value
    state_ptr += head * stride_head
    inside = key[:, None] * stride_key + value[None, :] * stride_value
    places = state_ptr + slot * stride_state + inside
    if ENDS:
        end = tl.load(end_ptr + request)
        passed = tl.load(tl.load(entry + 7).to(slot_like_ptr.dtype) + request).to(tl.int64)
    real = real_key[:, None] & real_value[None, :]
    state = tl.load(places, mask=real, other=0).to(tl.float32)
    # Where there are more numbers than int32 has, some have the same chance.
    drawn = ((tl.program_id(0) * HEADS + head) * KEYS + key[:, None]) * VALUES + value[None, :]
    for place in range(tl.load(count_ptr + request)):
        inward = convolved_at(
            mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, weight_ptr, stride_weight, conv_bias_ptr,
            path_ptr, place, key_channel, real_key, TAPS, BIAS,
        )  # fmt: skip
        values = convolved_at(
            mixed_ptr, stride_row, conv_ptr, stride_channel, stride_place, weight_ptr, stride_weight, conv_bias_ptr,
            path_ptr, place, value_channel, real_value, TAPS, BIAS,
        )  # fmt: skip
        step = softplus(tl.load(steps_ptr + tl.load(path_ptr + place) * stride_steps).to(tl.float32) + bias)
        state = tl.exp(step * rate) * state + inward[:, None] * (step * values)[None, :]
        if ENDS:  # noqa: SIM102 - without them the kernel has no end
            if place + 1 == end:
                there = state_ptr + passed * stride_state + inside
                tl.store(there, _rounded(state, seed, drawn, state_like_ptr.dtype.element_ty, BY_CHANCE), mask=real)
    tl.store(places, _rounded(state, seed, drawn, state_like_ptr.dtype.element_ty, BY_CHANCE), mask=real)


@triton.jit
def _rounded(state, seed, places, TYPE: tl.constexpr, BY_CHANCE: tl.constexpr):
    if BY_CHANCE:
        state = round_by_chance(state, seed, places)
    return state.to(TYPE)


def advance(
    layers: Sequence[StateSpaceLayer],
    kept: KeptRows,
    slots: Sequence[Tensor],
    path: Tensor,
    counts: Tensor,
    ends: BlockEnds | None = None,
) -> None:
    first, table = layers[0], table_of(layers, slots, ends)
    values, keys = first.states.shape[2:]
    block_k, block_v = block_of(keys), block_of(values, BLOCK_V)
    _follow_kernel[len(path) * len(layers), first.heads, triton.cdiv(values, block_v)](
        table, kept.mixed, *kept.mixed.stride()[:2], kept.gates, *kept.gates.stride()[:2],
        first.conv_states, *first.conv_states.stride(), first.states, *first.states.stride(),
        first.conv_weight, first.conv_weight.stride(0), first.bias_argument, first.decay, first.step_bias,
        slots[0], path, path.stride(0), counts, counts if ends is None else ends.rows, len(layers), next(_SEEDS),
        ENDS=ends is not None, BY_CHANCE=first.by_chance,
        GROUPS=first.groups, HEADS=first.heads, KEYS=keys, VALUES=values, TAPS=first.taps,
        BIAS=first.conv_bias is not None, BLOCK_K=block_k, BLOCK_V=block_v, num_warps=4 if block_k <= 128 else 8,
    )  # fmt: skip
    shift(table, layers, kept, slots, path, counts, ends)
