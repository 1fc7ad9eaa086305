"""One step over draft trees, phase by phase.

vLLM calls a hook for each phase, with the same ``InputBatch``; what a phase finds out is a value, which the next one
takes from here. For any other batch, a dummy one or one without drafts, there is none.

    layout = steps.trees.lay_out(batch, ...)   before the target's pass: positions by depth, who sees whom
    steps.begin(batch, layout, ...)            the layers' metadata carry the trees
    (the target runs, its sampler draws at every node, the walk follows what was drawn)
    steps.end_pass(batch)                      positions of a chain again
    steps.accept(batch, path, accepted)        keys and values of the accepted path move to the front, states go on
    steps.accepted_in(batch)                   what the drafter goes on from
"""

from collections.abc import Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from torch import Tensor
from vllm.v1.worker.gpu.input_batch import InputBatch

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.verification.compaction import Compaction
from vllm_specext.engine.verification.layout import AcceptedPaths, TreeLayout
from vllm_specext.engine.verification.recurrent_trees import RecurrentTrees
from vllm_specext.engine.verification.tree_states import TreeStates

Value = TypeVar("Value")


class OfBatch(Generic[Value]):
    """A value of the last batch that had one."""

    def __init__(self) -> None:
        self._last: tuple[InputBatch, Value] | None = None

    def put(self, batch: InputBatch, value: Value) -> None:
        self._last = batch, value

    def get(self, batch: InputBatch) -> Value | None:
        """The value of this very ``batch``, or ``None``."""
        return self._last[1] if self._last is not None and self._last[0] is batch else None


class Begun(NamedTuple):
    layout: TreeLayout
    slot_mappings: Tensor
    """The KV slot of each row, by cache group, ``[groups, tokens]``."""
    metadata: dict[str, Any]
    """Of the target's layers, by name."""


class TreeSteps:
    """Steps of a target that verifies the draft trees of ``trees``."""

    def __init__(
        self, trees: TreeStates, recurrent: RecurrentTrees | None = None, causal: Tensor | None = None
    ) -> None:
        """``causal`` ``[N + 1, words]``: what rows of chains see, where the target has latent attention (MLA)."""
        self.trees = trees
        self._causal = causal
        self._recurrent = recurrent
        self.layers: Sequence[Sequence[Any]] = ()
        """The target's attention layers by cache group, once there are caches."""
        self._layer_names: list[list[str]] = []
        self._compaction = Compaction(())
        self._begun: OfBatch[Begun] = OfBatch()
        self._accepted: OfBatch[AcceptedPaths] = OfBatch()

    def use_caches(self, layers: Sequence[dict[str, Any]]) -> None:
        """The target's attention layers by name and cache group, whose caches are others from now on."""
        self._layer_names = [list(group) for group in layers]
        self.layers = [list(group.values()) for group in layers]
        self._compaction = Compaction([[layer for layer in group if _caches(layer)] for group in self.layers])

    def forget_caches(self) -> None:
        """Hold nothing of the caches that the layers have now, nor of the last step."""
        self._compaction, self._begun, self._accepted = Compaction(()), OfBatch(), OfBatch()
        if self._recurrent is not None:
            self._recurrent.layers.forget_caches()

    def begin(
        self,
        batch: InputBatch,
        layout: TreeLayout | None,
        metadata: dict[str, Any],
        slot_mappings: Tensor,
        decoding: TreeLayout | None = None,
    ) -> None:
        """Have the target's pass over ``batch`` see the trees of ``layout``, or all rows of ``decoding``, where more
        than these decode."""
        if (seen := decoding or layout) is not None:
            seen.attach(metadata, self._layer_names, self._causal)
        if layout is not None:
            if self._recurrent is not None:
                self._recurrent.begin(batch, metadata, layout)
            self._begun.put(batch, Begun(layout, slot_mappings, metadata))

    def place_on_axes(self, batch: InputBatch, positions: Tensor) -> None:
        """Have ``positions`` ``[axes, T]`` of ``batch`` (M-RoPE) follow the nodes' depths as well. Drafted tokens are
        text, which goes on along all axes alike."""
        begun = self._begun.get(batch)
        if begun is not None and begun.layout.chain_positions is not None:
            rows = begun.layout.rows
            positions[:, :rows] += batch.positions[:rows] - begun.layout.chain_positions

    @replaces(
        "vllm.v1.worker.gpu.input_batch.InputBatch.positions",
        name="positions of trees",
        why="vLLM counts positions up along a request's rows; those of a tree follow the nodes' depths",
        how="written by depth for the target's pass, and those of a chain put back afterwards",
        upstream="none: vLLM's drafts are chains",
        until="vLLM verifies trees whose shape differs by request",
        kind="set",
    )
    def end_pass(self, batch: InputBatch) -> None:
        """Give the rows of ``batch`` the positions of a chain again."""
        begun = self._begun.get(batch)
        if begun is not None and begun.layout.chain_positions is not None:
            batch.positions[: begun.layout.rows] = begun.layout.chain_positions

    def accept(self, batch: InputBatch, path: Tensor, num_accepted: Tensor) -> None:
        """Move the accepted paths ``[R, levels + 1]``, of which the first ``num_accepted`` ``[R]`` nodes count, to the
        front of their requests' KV slots, and have recurrent states go on along them."""
        begun = self._begun.get(batch)
        if begun is not None:
            paths = begun.layout.accepted(path, num_accepted)
            self._compaction(paths, begun.slot_mappings)
            if self._recurrent is not None:
                self._recurrent.accept(begun.metadata, paths, num_accepted[: begun.layout.requests])
            self._accepted.put(batch, paths)

    def accepted_in(self, batch: InputBatch) -> AcceptedPaths | None:
        """The paths that the step over ``batch`` accepted; ``None`` where it verified no drafts."""
        return self._accepted.get(batch)


def _caches(layer: Any) -> bool:
    """Whether an attention ``layer`` has keys and values of its own; others read those of an earlier layer, which must
    not move twice."""
    return getattr(layer, "kv_sharing_target_layer_name", None) is None
