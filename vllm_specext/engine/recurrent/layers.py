"""Drafts in the target's layers with a recurrent state.

The instances are wrapped, not the class: a step's metadata names the rows of drafts, which run our kernel, and vLLM's
own method gets all others. The rows' inputs are kept until the accepted paths are known, along which the states then go
on. So each request has one state between steps, as in plain decoding, and vLLM is told to keep no more.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.recurrent import gated_delta, state_space
from vllm_specext.engine.recurrent.kind import RecurrentKind
from vllm_specext.engine.recurrent.metadata import OneStateMetadata, find_slots
from vllm_specext.engine.recurrent.state_pages import keep_no_room_for_drafts
from vllm_specext.kernels.recurrent import BlockEnds, KeptRows, RecurrentLayer, TreeRows

KINDS = (gated_delta.KIND, state_space.KIND)


def recurrent_layers(vllm_config: VllmConfig) -> tuple[RecurrentKind, dict[str, Any]] | None:
    """The target's layers by name, as vLLM's metadata has them, and their kind; ``None`` where it has none."""
    for kind in KINDS:
        if modules := get_layers_from_vllm_config(vllm_config, kind.module):
            return kind, modules
    return None


class RecurrentLayers:
    """The target's layers with a recurrent state, which verify drafts."""

    @classmethod
    def of(cls, vllm_config: VllmConfig, device: torch.device) -> "RecurrentLayers | None":
        """Those of the target of one of our methods; ``None`` where it has none."""
        if (found := recurrent_layers(vllm_config)) is None:
            return None
        keep_no_room_for_drafts()
        return cls(*found, vllm_config, device)

    def __init__(
        self, kind: RecurrentKind, modules: dict[str, Any], vllm_config: VllmConfig, device: torch.device
    ) -> None:
        config, one = vllm_config.speculative_config, next(iter(modules.values()))
        self._rule, self.taps, self.levels = kind.rule, one.conv_kernel_size, config.levels
        rows, channels, heads = most_rows(vllm_config), one.conv_dim // one.tp_size, kind.heads(one) // one.tp_size
        made: dict[str, Any] = {"dtype": vllm_config.model_config.dtype, "device": device}
        self._kept = KeptRows(
            torch.zeros(len(modules), rows, channels, **made),
            torch.zeros(len(modules), rows, kind.gates * heads, **made),
        )
        self._layers = {
            name: _Layer(kind, module, self._kept, place) for place, (name, module) in enumerate(modules.items())
        }

    def attach(self, metadata: dict[str, Any], rows: TreeRows, batch: InputBatch, new: np.ndarray) -> None:
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
        self._rule.advance(layers, self._kept, slots, paths, counts, ends)


def most_rows(vllm_config: VllmConfig) -> int:
    """The most rows that drafts of one step have, those of a graph that is captured included."""
    scheduler, config = vllm_config.scheduler_config, vllm_config.speculative_config
    drafting = [(last, nodes) for _, last, nodes in config.schedule if nodes]
    drafted = max((min(last, scheduler.max_num_seqs) * (1 + nodes) for last, nodes in drafting), default=0)
    captured = vllm_config.compilation_config.max_cudagraph_capture_size or 0
    return max(1, min(max(drafted, captured), scheduler.max_num_batched_tokens))


class _Layer:
    """One of them."""

    def __init__(self, kind: RecurrentKind, module: Any, kept: KeptRows, place: int) -> None:
        self.kind, self.module, self._kept, self._place = kind, module, kept, place
        self._last: tuple[Any, RecurrentLayer] | None = None
        kind.wrap(module, self)

    def now(self) -> RecurrentLayer:
        """The layer with the caches that it has now."""
        if self._last is None or self._last[0] is not self.module.kv_cache:
            self._last = self.module.kv_cache, self.kind.layer_of(self.module)
        return self._last[1]

    def forget(self) -> None:
        self._last = None

    def verify(self, step: OneStateMetadata, mixed: Tensor, gates: Sequence[Tensor], out: Tensor) -> None:
        assert step.trees is not None
        self.kind.rule.attend(mixed, gates, self.now(), step.trees, step.slots, self._kept, self._place, out)
