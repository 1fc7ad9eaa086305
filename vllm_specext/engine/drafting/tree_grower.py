"""Growing the trees of a speculator's batches from its buffers, in a graph where there is one.

Shapes: ``R`` requests, ``W`` rows of an accepted path.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from vllm.config import VllmConfig

from vllm_specext.engine.drafting.graphs import Graphs
from vllm_specext.engine.drafting.paths import PathInputs
from vllm_specext.engine.drafting.roots import Roots
from vllm_specext.engine.drafting.several_depths import Grown, Growth, no_cut
from vllm_specext.engine.drafting.step import Step
from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.engine.drafting.tree_sizes import TreeSizes
from vllm_specext.kernels.recording import Piece
from vllm_specext.tree.budget import TreeShape


@dataclass(frozen=True)
class GrowthInputs:
    """What growing trees reads of ``R`` requests, in buffers that stay where they are."""

    roots: Roots
    paths: PathInputs
    root_slots: int
    """KV slots from the last sampled token's on that are not a drafted node's."""
    max_rows: int
    """Rows that a pass of the drafter may have."""

    @classmethod
    def buffers(cls, vllm_config: VllmConfig, width: int, device: torch.device) -> "GrowthInputs":
        """For as many requests as vLLM's configuration has. ``width``: ``W``"""
        scheduler, options = vllm_config.scheduler_config, vllm_config.speculative_config.options
        roots = Roots.buffers(scheduler.max_num_seqs, device)
        paths = PathInputs.buffers(scheduler.max_num_seqs, width, device)
        return cls(roots, paths, options.root_slots, scheduler.max_num_batched_tokens)

    def holds_paths(self, requests: int) -> bool:
        """Whether the accepted paths of so many requests, padding included, are read in one pass."""
        return requests * self.paths.width <= self.max_rows

    def mask(self, first: int, end: int) -> None:
        """Make requests ``first`` to ``end`` padding: they write no keys and values, and nothing reads what they
        draft."""
        self.roots.mask(first, end, self.root_slots)
        self.paths.mask(first, end)


Grow = Callable[[Growth], Grown]
"""Grows trees from what is in the buffers."""


class TreeGrower:
    """Grows the trees of a batch whose inputs are in the buffers. Its speculator keeps the graphs, for vLLM to find."""

    def __init__(self, grow: Grow, inputs: GrowthInputs, sizes: TreeSizes, max_model_len: int) -> None:
        self._grow, self._inputs, self._sizes, self._max_model_len = grow, inputs, sizes, max_model_len

    def __call__(self, step: Step, shape: TreeShape, reads_paths: bool, graphs: Graphs | None) -> TreeDraft:
        """Trees of a ``shape`` for the requests of a ``step``, no deeper than that says, after the accepted paths were
        read from their buffers, or without. In a graph that is larger the requests after them are padding."""
        requests, kind = step.requests, (shape, reads_paths)
        depths = self._sizes.depths(shape)
        depth = step.depth if step.depth in depths else shape.depth
        size = None
        if graphs is not None:
            growth = self._whole(requests, shape, reads_paths, graphs.cut)
            graphs.offer(requests, kind, partial(self._grow, growth))
            size = graphs.size_for(requests, kind)
        if graphs is None or size is None:
            shallow = replace(shape, depth=depth)
            return self._grow(Growth(requests, shallow, reads_paths, step.longest, [depth]))[depth]
        self._inputs.mask(requests, size)
        # A recording that is made now gives drafts of all depths.
        without = growth.left_out(depth) if graphs.has(size, kind) else ()
        grown: Grown = graphs.replay(size, kind, without)
        return grown[depth].part(requests)

    def capture(self, graphs: Graphs | None, vllm_config: VllmConfig) -> None:
        """Capture growing the shapes that vLLM's configuration has, with accepted paths to read first, where a pass
        holds them, and without."""
        assert graphs is not None  # vLLM has had them made
        if not graphs.needs_capture():
            return
        shapes = self._sizes.captured(vllm_config)
        self._inputs.mask(0, max(shapes))
        passes: dict[Any, Callable[[], Grown]] = {
            (size, (shape, reads_paths)): partial(self._grow, self._whole(size, shape, reads_paths, graphs.cut))
            for size in sorted(shapes, reverse=True)
            for shape in reversed(shapes[size])
            for reads_paths in (True, False)
            if not reads_paths or self._inputs.holds_paths(size)
        }
        graphs.capture_passes(passes)

    def rehearse(self, schedule: Sequence[Sequence[int]], most: int) -> None:
        """Grow without caches what the ``schedule`` asks for with at most ``most`` requests, for vLLM to see how much
        memory it takes."""
        for requests, shape in self._sizes.of_schedule(schedule, most):
            self._inputs.mask(0, requests)
            self._grow(self._whole(requests, shape, False))

    def _whole(
        self, requests: int, shape: TreeShape, reads_paths: bool, cut: Callable[[Piece], None] = no_cut
    ) -> Growth:
        """With a draft for each depth, for requests of any length."""
        return Growth(requests, shape, reads_paths, self._max_model_len, self._sizes.depths(shape), cut)
