"""CUDA graphs of draft passes: one for each number of requests and each kind of pass. On a CPU they are recordings.

A captured pass reads its caller's buffers and leaves its result where it was when it was captured, for the next replay
to overwrite; a batch runs in the smallest graph that holds it. A pass may be cut into pieces of which a replay leaves
some out. They run one after the other over the same memory, so that what is left out has to be a step that later ones
can do without: a summand of the residual stream, say.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from tqdm import tqdm
from vllm.compilation.cudagraph_pool import capture_pool
from vllm.config import VllmConfig
from vllm.config.compilation import CUDAGraphMode
from vllm.distributed.parallel_state import graph_capture, is_global_first_rank
from vllm.model_executor.offloader.base import get_offloader
from vllm.utils.torch_utils import current_stream
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager

from vllm_specext.cpu_runner.recording import records_passes
from vllm_specext.engine.drafting.recorded_passes import Kind, Mask, RecordedPasses
from vllm_specext.kernels.recording import WHOLE, Piece


class DraftGraphs(CudaGraphManager):
    """Graphs of passes, by number of requests and kind of pass.

    vLLM's manager is its base for the bookkeeping: vLLM measures the memory of such attributes of a speculator, and
    drops them and has others made when it does.
    """

    def __init__(
        self, vllm_config: VllmConfig, device: torch.device, mode: CUDAGraphMode, sizes: Collection[int]
    ) -> None:
        """``vllm_config`` is the target's, and so is ``mode``. ``sizes``: numbers of requests to capture."""
        self._wanted = sizes
        self.sizes: Sequence[int] = ()
        """Numbers of requests that are captured, ascending; none where ``mode`` captures no whole passes."""
        self._pieces: dict[tuple[int, Kind], list[tuple[Piece, torch.cuda.CUDAGraph]]] = {}
        self._results: dict[tuple[int, Kind], Any] = {}
        self._next_piece: Callable[[Piece], None] | None = None
        full = mode.decode_mode() == CUDAGraphMode.FULL
        super().__init__(vllm_config, device, CUDAGraphMode.FULL_DECODE_ONLY if full else CUDAGraphMode.NONE, 1)

    def _init_candidates(self) -> None:
        self.sizes = sorted(self._wanted) if self.cudagraph_mode else ()
        if self.sizes:
            batches = [BatchExecutionDescriptor(CUDAGraphMode.FULL, size, size) for size in self.sizes]
            self._capture_descs = {CUDAGraphMode.FULL: batches}

    @torch.inference_mode()
    def capture_passes(self, passes: Mapping[tuple[int, Kind], Callable[[], Any]]) -> None:
        """Capture each of ``passes``, by number of requests and kind. The largest should come first, for the others to
        fit into its memory."""
        with graph_capture(device=self.device):
            for key, run in tqdm(
                passes.items(), desc="Capturing CUDA graphs of draft passes", disable=not is_global_first_rank()
            ):
                run()  # what is compiled or chosen at the first call
                get_offloader().sync_prev_onload()
                with capture_pool(self.pool, self.vllm_config) as pool, self._piece_by_piece(key, pool):
                    # Kept, so that no later graph takes the result's memory for its own.
                    self._results[key] = run()
                    get_offloader().join_after_forward()
        self._graphs_captured = True

    def offer(self, requests: int, kind: Kind, run: Callable[[], Any]) -> None:
        """Nothing: what is captured was captured at start."""

    def prepare(self, size: int, kind: Kind, mask: Mask | None = None) -> None:
        """Nothing, for the same reason."""

    def cut(self, piece: Piece) -> None:
        """What follows in the pass, up to the next cut, is this ``piece``; nothing while no pass is captured."""
        if self._next_piece is not None:
            self._next_piece(piece)

    def has(self, size: int, kind: Kind) -> bool:
        """Whether such a pass can be replayed without some of its pieces."""
        return (size, kind) in self._results

    def size_for(self, requests: int, kind: Kind) -> int | None:
        """The smallest number of requests that such a pass is captured for and that holds so many; ``None`` where there
        is no graph."""
        return next((size for size in self.sizes if size >= requests and (size, kind) in self._results), None)

    def replay(self, size: int, kind: Kind, without: Collection[Piece] = ()) -> Any:
        """The result of a captured pass, run ``without`` these pieces."""
        get_offloader().sync_prev_onload()
        for piece, graph in self._pieces[size, kind]:
            if piece not in without:
                graph.replay()
        return self._results[size, kind]

    @contextmanager
    def _piece_by_piece(self, key: tuple[int, Kind], pool: Any) -> Iterator[None]:
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


Graphs = DraftGraphs | RecordedPasses


def draft_graphs(vllm_config: VllmConfig, device: torch.device, mode: CUDAGraphMode, sizes: Collection[int]) -> Graphs:
    """What a speculator's passes run in: graphs for these ``sizes`` of a batch, where the target's ``mode`` has any, or
    recordings."""
    if records_passes(vllm_config):
        return RecordedPasses(vllm_config.scheduler_config.max_num_seqs)
    return DraftGraphs(vllm_config, device, mode, sizes)
