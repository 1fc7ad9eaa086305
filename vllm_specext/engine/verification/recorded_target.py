"""The target's pass on a CPU, recorded and replayed.

A decoding step of few rows spends more time in the modules' Python than in arithmetic. The pass of a step is recorded
the second time that one of its shape comes (``kernels/recording.py``), and replayed from then on. What a step hands
over, ids, positions and attention metadata, is copied to where the recorded one had it, unless it is there already.

The third step of a shape runs both ways, and nothing is replayed any more in this process if a single number differs:
a model may do more in Python than call operations.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.forward_context import get_forward_context
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.verification.attention import rows_of
from vllm_specext.kernels.recording import Recording

logger = logging.getLogger(f"vllm.{__name__}")

MOST_ROWS = 128
"""Rows up to which a pass is recorded; beyond, Python is little beside the arithmetic."""
BUDGET = 256 << 20
"""Bytes that the results of all recordings may take together. A model whose results are larger has little to gain."""
MOST_SEEN = 1024
"""Shapes that are remembered because they came once. Steps that read prompts have ever new ones, and a server runs for
months."""
LONGEST = frozenset({"max_seq_len"})
"""Numbers of a step's metadata that no kernel on a CPU reads: where a pass is recorded, the bound of tree rows is the
model's context, and the wheel's own attention goes by each request's length."""


@dataclass
class Recorded:
    recording: Recording
    inputs: list[Tensor]
    result: Any
    checked: bool = False


class RecordedTarget:
    """Stands in the place of the model's ``forward``."""

    def __init__(self, forward: Callable[..., Any]) -> None:
        self._forward = forward
        self._seen: OrderedDict[Any, None] = OrderedDict()
        self._recorded: dict[Any, Recorded] = {}
        self._bytes = 0
        self._works = True

    def __call__(self, **inputs: Any) -> Any:
        found = self._inputs(inputs) if self._works else None
        if found is None:
            return self._forward(**inputs)
        key, tensors = found
        recorded = self._recorded.get(key)
        if recorded is not None:
            return self._replay(recorded, tensors, inputs)
        if key in self._seen and self._bytes < BUDGET:
            return self._record(key, tensors, inputs)
        self._seen[key] = None
        self._seen.move_to_end(key)
        if len(self._seen) > MOST_SEEN:
            self._seen.popitem(last=False)
        return self._forward(**inputs)

    def _replay(self, recorded: Recorded, tensors: list[Tensor], inputs: dict[str, Any]) -> Any:
        for old, new in zip(recorded.inputs, tensors, strict=True):
            if old.data_ptr() != new.data_ptr():
                old.copy_(new)
        recorded.recording.replay()
        if not recorded.checked:
            recorded.checked = True
            replayed = [tensor.clone() for tensor in tree_leaves(recorded.result)]
            result = self._forward(**inputs)
            if not all(torch.equal(*pair) for pair in zip(replayed, tree_leaves(result), strict=True)):
                self._works = False
                self._recorded.clear()
                logger.warning("The target's pass cannot be replayed, because it does more than call operations.")
            return result
        return recorded.result

    def _record(self, key: Any, tensors: list[Tensor], inputs: dict[str, Any]) -> Any:
        recording = Recording()
        try:
            with recording.taking():
                result = self._forward(**inputs)
        except RuntimeError as error:
            self._works = False
            logger.info("The target's pass is not recorded: %s.", error)
            return self._forward(**inputs)
        self._bytes += recording.bytes
        self._recorded[key] = Recorded(recording, tensors, result)
        return result

    def forget(self) -> None:
        """Record every pass anew. Its products hold weights in a layout of their own, of which others were loaded."""
        self._recorded.clear()
        self._bytes = 0

    @property
    def forward(self) -> Callable[..., Any]:
        """The model's own."""
        return self._forward

    def _inputs(self, inputs: dict[str, Any]) -> tuple[Any, list[Tensor]] | None:
        """What tells apart passes that run the same operations, and the tensors that this one reads; ``None`` for a
        pass that is not recorded."""
        ids = inputs.get("input_ids")
        context = get_forward_context()
        if ids is None or len(ids) > MOST_ROWS or not context.attn_metadata:
            return None
        key: list[Any] = []
        tensors: list[Tensor] = []
        for name, value in _handed_over(inputs, context.attn_metadata, context.slot_mapping):
            if isinstance(value, Tensor):
                key.append((name, value.shape, value.stride()))
                tensors.append(value)
            elif value is None or isinstance(value, bool | int | float | str):
                if name not in LONGEST:
                    key.append((name, value))
            else:
                return None
        return tuple(key), tensors


def _handed_over(inputs: dict[str, Any], metadata: Any, slot_mappings: Any) -> Iterator[tuple[str, Any]]:
    """What a pass reads, by name. Layers of one cache group share their metadata and slots."""
    yield from inputs.items()
    for own in {id(own): own for own in metadata.values()}.values():
        yield from _fields(own)
        if (rows := rows_of(own)) is not None:
            yield from _fields(rows)
    for slots in {id(slots): slots for slots in slot_mappings.values()}.values():
        yield "slots", slots


def _fields(values: Any) -> Iterator[tuple[str, Any]]:
    return ((field.name, getattr(values, field.name)) for field in fields(values))


@replaces(
    "torch.nn.Module.forward",
    name="target's pass on a CPU",
    why="the modules' Python takes longer than the arithmetic of a decoding step of a small model",
    how=(
        "replaced on the target's instance where an eager model runs on a CPU with one rank: passes of few rows are "
        "recorded operation by operation and replayed"
    ),
    upstream="none: CUDA graphs do it on a GPU",
    until="vLLM has something like CUDA graphs on a CPU",
    kind="set",
)
def record_target(model: nn.Module, vllm_config: VllmConfig) -> RecordedTarget | None:
    """Have the passes of the target ``model``, whose caches are there, be recorded if they can be: all of its state is
    in the keys and values of attention, which a pass may write twice. ``None`` where they cannot."""
    layers = get_layers_from_vllm_config(vllm_config, AttentionLayerBase)
    if vllm_config.lora_config is not None or any(type(layer) is not Attention for layer in layers.values()):
        return None
    forward = model.forward.forward if isinstance(model.forward, RecordedTarget) else model.forward
    model.forward = recorded = RecordedTarget(forward)
    return recorded
