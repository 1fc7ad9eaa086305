"""CUDA graphs of growing trees: two per number of requests and tree size that the schedule can ask for.

A graph runs all levels of a tree, in one of the two after the drafter has read the paths that the last verification
accepted. It reads the speculator's buffers and leaves its results where they were when it was captured, for the next
replay to overwrite. A batch runs in the smallest graph that holds it; the requests that it lacks are drafted too, but
write no keys and values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import CudaGraphManager
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import SpeculatorBatchDescriptor

from vllm_specext.engine.graph_sizes import drafted_sizes
from vllm_specext.tree.budget import TreeShape

Result = TypeVar("Result")


@dataclass(frozen=True)
class Size(SpeculatorBatchDescriptor):
    reads_paths: bool = False


class GrowthGraphs(CudaGraphManager, Generic[Result]):
    def __init__(
        self,
        vllm_config: VllmConfig,
        device: torch.device,
        mode: CUDAGraphMode,
        shape_for: Callable[[int, int], TreeShape | None],
    ) -> None:
        """``mode`` is the target's; ``shape_for(nodes, requests)`` is what is grown."""
        self._shape_for = shape_for
        self._results: dict[Any, Result] = {}
        full = mode.decode_mode() == CUDAGraphMode.FULL
        super().__init__(vllm_config, device, CUDAGraphMode.FULL_DECODE_ONLY if full else CUDAGraphMode.NONE, 1)

    def _init_candidates(self) -> None:
        """Trees are those that the schedule has for a number of requests."""
        if not self.cudagraph_mode:
            return
        self._sizes = [
            Size(
                cg_mode=CUDAGraphMode.FULL,
                num_tokens=number,
                num_reqs=number,
                num_speculative_tokens=nodes,
                reads_paths=reads_paths,
            )
            for number, drafted in drafted_sizes(self.vllm_config).items()
            for nodes in drafted
            if self._shape_for(nodes, number) is not None
            for reads_paths in (False, True)
        ]
        # The largest first: the others fit into its memory.
        if self._sizes:
            self._capture_descs = {CUDAGraphMode.FULL: self._sizes[::-1]}

    def capture_all(self, grow: Callable[[int, TreeShape, bool], Result], clear: Callable[[int, int], None]) -> None:
        """Capture ``grow(requests, shape, reads_paths)`` for all sizes; ``clear(first, end)`` empties the buffers of
        those requests."""
        if not self.needs_capture():
            return

        def create_forward(desc: Any, warmup: bool) -> Callable[[CUDAGraphMode], None]:
            shape = self._shape_for(desc.num_speculative_tokens, desc.num_reqs)
            assert shape is not None

            def forward(mode: CUDAGraphMode) -> None:
                # Kept, so that no later graph takes the results' memory for its own.
                self._results[desc] = grow(desc.num_reqs, shape, desc.reads_paths)

            clear(0, desc.num_reqs)
            return forward

        self.capture(create_forward, "Capturing CUDA graphs of draft trees")

    def run(
        self, requests: int, shape: TreeShape, reads_paths: bool, clear: Callable[[int, int], None]
    ) -> Result | None:
        """What the smallest graph for so many ``requests`` leaves; ``None`` where there is no graph."""
        if not self._graphs_captured:
            return None
        for size in self._sizes:
            if size.num_speculative_tokens != shape.nodes or size.reads_paths != reads_paths:
                continue
            if size.num_tokens < requests or self._shape_for(shape.nodes, size.num_tokens) != shape:
                continue
            clear(requests, size.num_tokens)
            self.run_fullgraph(size)
            return self._results[size]
        return None
