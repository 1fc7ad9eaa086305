"""CUDA graphs of single draft passes, which may be cut into pieces of which a replay leaves some out.

A pass reads its caller's buffers and leaves its result where it was when it was captured, for the next replay to
overwrite; a batch runs in the smallest graph that holds it. The pieces of a pass run one after the other over the same
memory, so that what is left out has to be a step that later ones can do without: a summand of the residual stream, say.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Generic, TypeVar

import torch
from tqdm import tqdm
from vllm.compilation.cudagraph_pool import capture_pool
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.distributed.parallel_state import graph_capture, is_global_first_rank
from vllm.utils.torch_utils import current_stream
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager

from vllm_specext.engine.graph_sizes import drafted_sizes

Result = TypeVar("Result")
Piece = Hashable

WHOLE = "whole"
"""Name of what comes before the first cut."""


class PassGraphs(CudaGraphManager, Generic[Result]):
    """vLLM's manager for its bookkeeping: it measures the memory of such attributes of a speculator, and drops them."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, mode: CUDAGraphMode) -> None:
        """``vllm_config`` is the target's, and so is ``mode``."""
        self.sizes: list[int] = []
        """Numbers of requests that are captured, ascending."""
        self._pieces: dict[Hashable, list[tuple[Piece, torch.cuda.CUDAGraph]]] = {}
        self._results: dict[Hashable, Result] = {}
        self._next_piece: Callable[[Piece], None] | None = None
        full = mode.decode_mode() == CUDAGraphMode.FULL
        super().__init__(vllm_config, device, CUDAGraphMode.FULL_DECODE_ONLY if full else CUDAGraphMode.NONE, 1)

    def _init_candidates(self) -> None:
        """Powers of two among vLLM's capture sizes: a draft pass of few requests takes as long as its weights do to
        read, and is captured in many pieces."""
        if not self.cudagraph_mode:
            return
        drafted = {number for number, tokens in drafted_sizes(self.vllm_config).items() if any(tokens)}
        self.sizes = sorted(number for number in drafted if number & (number - 1) == 0 or number == max(drafted))
        if self.sizes:
            batches = [BatchExecutionDescriptor(CUDAGraphMode.FULL, size, size) for size in self.sizes]
            self._capture_descs = {CUDAGraphMode.FULL: batches}

    @torch.inference_mode()
    def capture_passes(self, passes: Mapping[Hashable, Callable[[], Result]]) -> None:
        """Capture each of ``passes``; the largest should come first, for the others to fit into its memory."""
        with graph_capture(device=self.device):
            for key, run in tqdm(
                passes.items(), desc="Capturing CUDA graphs of draft passes", disable=not is_global_first_rank()
            ):
                run()  # what is compiled or chosen at the first call
                with capture_pool(self.pool, self.vllm_config) as pool, self._piece_by_piece(key, pool):
                    self._results[key] = run()
        self._graphs_captured = True

    def cut(self, piece: Piece) -> None:
        """What follows in the pass, up to the next cut, is this ``piece``; nothing while no pass is captured."""
        if self._next_piece is not None:
            self._next_piece(piece)

    def size_for(self, requests: int) -> int | None:
        """The smallest number that is captured and holds so many; ``None`` where there is no graph."""
        if not self._graphs_captured:
            return None
        return next((size for size in self.sizes if size >= requests), None)

    def holds(self, key: Hashable) -> bool:
        return key in self._results

    def replay(self, key: Hashable, without: Collection[Piece] = ()) -> Result:
        """The result of a captured pass, run ``without`` these pieces."""
        for piece, graph in self._pieces[key]:
            if piece not in without:
                graph.replay()
        return self._results[key]

    @contextmanager
    def _piece_by_piece(self, key: Hashable, pool: Any) -> Iterator[None]:
        pieces = self._pieces[key] = []
        with ExitStack() as capturing:

            def begin(piece: Piece) -> None:
                capturing.close()
                graph = torch.cuda.CUDAGraph()
                capturing.enter_context(torch.cuda.graph(graph, pool, stream=current_stream()))
                pieces.append((piece, graph))

            begin(WHOLE)
            self._next_piece = begin
            try:
                yield
            finally:
                self._next_piece = None
