"""Drafts in the target's layers with a recurrent state: Qwen3-Next and Qwen3.5 (`kernels.gated_delta`).

The instances are wrapped, not the class: a step's metadata names the rows of drafts, which run our kernel, and vLLM's
own method gets all others. The rows' inputs are kept until the accepted paths are known, along which the states then go
on. So each request has one state between steps, as in plain decoding, and vLLM is told to keep no more.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.forward_context import get_forward_context
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.gated_delta_layers import layer_of, recurrent_layers
from vllm_specext.engine.verification.recurrent_metadata import OneStateBackend, OneStateMetadata, find_slots
from vllm_specext.engine.verification.state_pages import keep_no_room_for_drafts
from vllm_specext.kernels.gated_delta import BlockEnds, GatedDeltaLayer, GatedDeltaRows, KeptRows, advance, attend


class RecurrentLayers:
    """The target's layers with a recurrent state, which verify drafts."""

    @classmethod
    def of(cls, vllm_config: VllmConfig, device: torch.device) -> "RecurrentLayers | None":
        """Those of the target of one of our methods; ``None`` where it has none."""
        modules = recurrent_layers(vllm_config)
        if not modules:
            return None
        keep_no_room_for_drafts()
        return cls(modules, vllm_config, device)

    def __init__(self, modules: dict[str, Any], vllm_config: VllmConfig, device: torch.device) -> None:
        config, one = vllm_config.speculative_config, next(iter(modules.values()))
        self.taps, self.levels = one.conv_kernel_size, config.levels
        rows, channels, heads = most_rows(vllm_config), one.conv_dim // one.tp_size, one.num_v_heads // one.tp_size
        made: dict[str, Any] = {"dtype": vllm_config.model_config.dtype, "device": device}
        self._kept = KeptRows(
            torch.zeros(len(modules), rows, channels, **made), torch.zeros(len(modules), rows, 2 * heads, **made)
        )
        self._layers = {name: _Layer(module, self._kept, place) for place, (name, module) in enumerate(modules.items())}

    def attach(self, metadata: dict[str, Any], rows: GatedDeltaRows, batch: InputBatch, new: np.ndarray) -> None:
        """Have the layers with this ``metadata`` of the step over ``batch`` know the first ``rows`` for drafts.
        ``new``: places of those of their requests that have no state yet."""
        requests, most = len(rows.starts) - 1, self._kept.mixed.shape[1]
        if rows.num_rows > most:
            raise RuntimeError(f"drafts of a step have {rows.num_rows} rows, of which {most} can be kept")
        for name in self._layers:
            step = metadata[name]
            if not isinstance(step, OneStateMetadata) or step.drafted != requests:
                raise RuntimeError(f"the step's metadata of layer {name!r} does not know of its {requests} drafts")
            step.trees = rows
        groups = {id(step): step for name in self._layers if (step := metadata[name])}
        find_slots(groups.values(), rows.starts, batch.seq_lens[:requests])
        if len(new):
            self._clear(metadata, torch.from_numpy(new).to(rows.starts.device, non_blocking=True))

    def forget_caches(self) -> None:
        """Hold nothing of the caches that the layers have now."""
        for layer in self._layers.values():
            layer.forget()

    def _clear(self, metadata: dict[str, Any], new: Tensor) -> None:
        """vLLM schedules drafts to come even for a request whose prompt is one token, and a prompt's states begin with
        zeros."""
        for name, layer in self._layers.items():
            slots, own = metadata[name].slots[new].long(), layer.now()
            own.states[slots], own.conv_states[slots] = 0, 0

    def advance(self, metadata: dict[str, Any], paths: Tensor, counts: Tensor) -> None:
        """Have the states go on along ``paths`` ``[V, L]`` int64 of rows, of which the first ``counts`` ``[V]`` were
        accepted, in the step that had this ``metadata``. Where prefixes are cached, those where blocks end stay."""
        steps = [metadata[name] for name in self._layers]
        rows = steps[0].rows_to_ends
        ends = None if rows is None else BlockEnds([step.ends for step in steps], rows)
        layers, slots = [layer.now() for layer in self._layers.values()], [step.slots for step in steps]
        advance(layers, self._kept, slots, paths, counts, ends)


def most_rows(vllm_config: VllmConfig) -> int:
    """The most rows that drafts of one step have, those of a graph that is captured included."""
    scheduler, config = vllm_config.scheduler_config, vllm_config.speculative_config
    drafted = max(min(last, scheduler.max_num_seqs) * (1 + nodes) for _, last, nodes in config.schedule)
    captured = vllm_config.compilation_config.max_cudagraph_capture_size or 0
    return max(1, min(max(drafted, captured), scheduler.max_num_batched_tokens))


class _Layer:
    """One of them."""

    def __init__(self, module: Any, kept: KeptRows, place: int) -> None:
        self.module, self._kept, self._place = module, kept, place
        self._last: tuple[Any, GatedDeltaLayer] | None = None
        _wrap(module, self)

    def now(self) -> GatedDeltaLayer:
        """The layer with the caches that it has now."""
        if self._last is None or self._last[0] is not self.module.kv_cache:
            self._last = self.module.kv_cache, layer_of(self.module)
        return self._last[1]

    def forget(self) -> None:
        self._last = None

    def verify(self, step: OneStateMetadata, mixed: Tensor, a: Tensor, b: Tensor, out: Tensor) -> None:
        """Write what the rows of the trees of ``step`` get to ``out``, and keep what they were."""
        assert step.trees is not None
        attend(mixed, a, b, self.now(), step.trees, step.slots, self._kept, self._place, out)


@replaces(
    "vllm.model_executor.layers.mamba.gdn.base.GatedDeltaNetAttention.num_spec",
    name="recurrent layers",
    why=(
        "vLLM's kernels verify chains alone; they keep a state for each row, megabytes each, and room for the inputs "
        "of all"
    ),
    how=(
        "set on the target's instances: rows of drafts run our kernel, all others vLLM's method; no state is kept for "
        "drafts, and the metadata is built as if there were none"
    ),
    upstream="vllm#42910 verifies trees of hybrid targets with a state for each node",
    until="vLLM verifies trees whose shape differs by request",
    kind="set",
    also=(
        "vllm.model_executor.layers.mamba.abstract.MambaBase.get_kv_cache_spec",
        "vllm.model_executor.layers.mamba.abstract.MambaBase.get_attn_backend",
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn.QwenGatedDeltaNetAttention.enable_fused_gdn_spec_decode",
        "vllm.model_executor.layers.mamba.gdn.qwen_gdn_linear_attn.QwenGatedDeltaNetAttention._forward_core",
    ),
)
def _wrap(module: Any, layer: _Layer) -> None:
    """Have vLLM's ``module`` verify drafts as ``layer`` does."""
    spec, stock = module.get_kv_cache_spec, module._forward_core

    def get_kv_cache_spec(vllm_config: Any) -> Any:
        return replace(spec(vllm_config), num_speculative_blocks=0)

    def _forward_core(mixed_qkv: Tensor, b: Tensor, a: Tensor, core_attn_out: Tensor) -> None:
        steps = get_forward_context().attn_metadata
        step = steps.get(module.prefix) if isinstance(steps, dict) else None
        if not isinstance(step, OneStateMetadata) or step.trees is None:
            stock(mixed_qkv=mixed_qkv, b=b, a=a, core_attn_out=core_attn_out)
            return
        layer.verify(step, mixed_qkv, a, b, core_attn_out)
        if step.others is not None:
            rows = slice(step.trees.num_rows, None)
            steps[module.prefix] = step.others
            stock(mixed_qkv=mixed_qkv[rows], b=b[rows], a=a[rows], core_attn_out=core_attn_out[rows])
            steps[module.prefix] = step

    module.num_spec = 0
    module.enable_fused_gdn_spec_decode = False
    module.get_kv_cache_spec = get_kv_cache_spec
    module.get_attn_backend = lambda: OneStateBackend
    module._forward_core = _forward_core
