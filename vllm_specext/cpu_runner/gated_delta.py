"""Hybrid targets on a CPU: layers with a gated delta rule in float32, and what V2 launches for them.

vLLM's own operation for these layers takes bfloat16 alone, and keeps taking it where none of our methods verifies
drafts.
"""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

import ctypes
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap
from vllm_specext.kernels.gated_delta.naive import rule
from vllm_specext.kernels.recurrent.naive import follow

CHUNK = 64
"""Rows of a prompt that are computed at once."""


def scatter_num_accepted(idx_mapping: Tensor, num_sampled: Tensor, num_accepted: Tensor) -> None:
    """Note for the request slots ``idx_mapping`` ``[R]``, -1 for none, how many tokens were accepted, at least 1."""
    real = idx_mapping >= 0
    num_accepted[idx_mapping[real].long()] = num_sampled[: len(real)][real].clamp(min=1).to(num_accepted.dtype)


def fill_num_accepted(idx_mapping: Tensor, num_accepted: Tensor, num_sampled: int) -> None:
    """The same with one number for all."""
    num_accepted[idx_mapping[idx_mapping >= 0].long()] = num_sampled


def zero_kv_blocks(
    seg_addrs: Tensor, seg_block_strides: Tensor, seg_page_sizes: Tensor, block_ids: Tensor, BLOCK_SIZE: int
) -> None:
    """Clear the blocks ``block_ids`` in all segments; strides and sizes are in words of four bytes."""
    segments = zip(*(each.tolist() for each in (seg_addrs, seg_block_strides, seg_page_sizes)), strict=True)
    blocks = block_ids.tolist()
    for address, stride, size in segments:
        for block in blocks:
            ctypes.memset(address + 4 * stride * block, 0, 4 * size)


@replaces(
    "vllm.model_executor.layers.mamba.ops.cpu.gdn_attention.cpu_gdn_attention_core",
    name="gated delta rule on a CPU",
    why="vLLM's operation takes bfloat16 alone, and no layer's own method lies between it and the model",
    how="wrapped: in bfloat16 the original runs, otherwise, and with our methods, the layer's method",
    upstream="none known",
    until="vLLM computes these layers in float32 on a CPU",
    signature="mixed_qkv b a core_attn_out layer_name",
)
def _core(original: Callable) -> Callable:
    def cpu_gdn_attention_core(mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor, layer_name: Any) -> None:
        from vllm.forward_context import get_forward_context
        from vllm.utils.torch_utils import _resolve_layer_name

        layer = get_forward_context().no_compile_layers[_resolve_layer_name(layer_name)]
        # A layer that verifies drafts has a method of its own, and metadata that vLLM's operation cannot read.
        if mixed_qkv.dtype == torch.bfloat16 and "_forward_core" not in vars(layer):
            original(mixed_qkv, b, a, core_attn_out, layer_name)
        else:
            layer._forward_core(mixed_qkv=mixed_qkv, b=b, a=a, core_attn_out=core_attn_out)

    return cpu_gdn_attention_core


@replaces(
    "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn.QwenGatedDeltaNetAttention._forward_core",
    name="gated delta rule of a layer on a CPU",
    why="vLLM's method launches Triton kernels",
    how="replaced on a CPU by a body in torch",
    upstream="none known",
    until="vLLM computes these layers in float32 on a CPU",
    kind="set",
)
def _layer(original: Callable) -> Callable:
    def _forward_core(self: Any, mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor) -> None:
        from vllm.forward_context import get_forward_context

        metadata = get_forward_context().attn_metadata
        if isinstance(metadata, dict) and self.prefix in metadata:
            run(self, metadata[self.prefix], mixed_qkv, torch.cat((a, b), dim=1), core_attn_out)

    return _forward_core


def run(module: Any, metadata: Any, mixed: Tensor, gates: Tensor, out: Tensor) -> None:
    """Write what the layer ``module`` gives the rows of a step to ``out`` ``[T, Hv, V]``, and have its states go on.

    ``metadata``: vLLM's, of a step without drafts: requests of one row, then others. ``mixed`` ``[T, C]``, ``gates``
    ``[T, 2 Hv]``.
    """
    from vllm_specext.engine.recurrent.gated_delta import layer_of

    if metadata.spec_sequence_masks is not None:
        raise NotImplementedError("vLLM's own drafts for a hybrid target on a CPU need --dtype bfloat16")
    layer = layer_of(module)
    slots, starts = metadata.non_spec_state_indices_tensor.long(), metadata.non_spec_query_start_loc.tolist()
    if count := metadata.num_decodes:
        rows, once = torch.arange(count)[:, None], torch.ones(count, dtype=torch.int32)
        out[:count] = follow(rule, mixed, gates, layer, slots[:count], rows, once)[:, 0].to(out.dtype)
    for request in range(count, count + metadata.num_prefills):
        slot = slots[request : request + 1]
        if not metadata.has_initial_state[request]:
            layer.states[slot], layer.conv_states[slot] = 0, 0
        for rows in torch.arange(starts[request], starts[request + 1]).split(CHUNK):
            results = follow(rule, mixed, gates, layer, slot, rows[None], torch.tensor([len(rows)]))
            out[rows] = results[0].to(out.dtype)


def wrap_operation(module: Any) -> None:
    wrap(module, "cpu_gdn_attention_core", _core)
    # torch reads the operation's schema off its annotations, which are names that only their module knows.
    operation = module.cpu_gdn_attention_core
    operation.__signature__ = inspect.signature(operation, eval_str=True)


def wrap_layer(module: Any) -> None:
    wrap(module.QwenGatedDeltaNetAttention, "_forward_core", _layer)
