"""Which of its captured graphs a step runs in, where drafts differ in length from step to step.

vLLM captures a graph of decoding for each number of tokens that a request may have in a step, and each of its capture
sizes. It then keeps one ladder of sizes for all of them: a step looks at the graphs of the next captured size alone,
and where those are of other lengths, it runs in pieces with attention between them, though a larger graph of its own
length may hold it. With the default's ten lengths that happens to nearly half of all steps that graphs could hold. Here
every kind of graph has a ladder of its own, which lets it have fewer rungs.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap

LEAST_ROWS = 16
"""That a step may be padded by: as long as weights take longer to read than to multiply with, rows cost little."""
PART_OF_ROWS = 16
"""A larger step may be padded by such a part of its rows."""
KEPT = (1, 2, 4, 8)
"""Numbers of requests whose graphs are never left out."""


@replaces(
    "vllm.v1.worker.gpu.cudagraph_utils.CudaGraphManager._init_candidates",
    name="graphs by length of drafts",
    why=(
        "where drafts differ in length, vLLM runs a step in pieces unless the next larger captured size, of whatever "
        "length, is one of its own length; and it captures every size for every length"
    ),
    how=(
        "wrapped: each length gets a ladder of its own, with fewer rungs where a step has drafts; nothing where all "
        "drafts are equally long"
    ),
    upstream="vllm#56136",
    until="vLLM has a ladder for each length",
    signature="self",
)
@replaces(
    "vllm.v1.worker.gpu.cudagraph_utils.CudaGraphManager._capture_descs",
    name="graphs that are captured",
    why="a graph for every size and length takes long to capture, and a length's next larger one pads a step little",
    how="set when vLLM has chosen: some of those of steps with drafts are left out",
    upstream="none: vLLM captures all",
    until="vLLM leaves some out",
    kind="set",
)
@replaces(
    "vllm.v1.worker.gpu.cudagraph_utils.CudaGraphManager._candidates",
    name="graphs that a step may run in",
    why="vLLM looks at those of the next larger captured size alone, whatever their length",
    how="set when vLLM has chosen: the smallest of each length that holds the step",
    upstream="vllm#56136",
    until="vLLM has a ladder for each length",
    kind="set",
)
def _with_ladders(original: Callable) -> Callable:
    def _init_candidates(self: Any) -> None:
        original(self)
        config = self.vllm_config.speculative_config
        if config is not None and config.uses_dynamic_speculative_decoding():
            # A step without drafts must not be slower than without a drafter, and keeps all of vLLM's rungs.
            without = 1 if self.decode_query_len > 1 else None
            self._capture_descs = {mode: spaced(graphs, without) for mode, graphs in self._capture_descs.items()}
            self._candidates = candidates(self._capture_descs)

    return _init_candidates


def use_ladders() -> None:
    """Made in workers, once one of our methods is configured."""
    wrap(CudaGraphManager, "_init_candidates", _with_ladders)


def candidates(
    graphs: Mapping[CUDAGraphMode, Sequence[BatchExecutionDescriptor]],
) -> dict[tuple[int, int], list[BatchExecutionDescriptor]]:
    """By a step's number of tokens and of active LoRA adapters: the smallest graph of each kind that holds as many
    tokens, whole ones before those in pieces."""
    found: dict[tuple[int, int], list[BatchExecutionDescriptor]] = defaultdict(list)
    for mode in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE):
        for ladder in _ladders(graphs.get(mode, ())):
            first = 0
            for graph in reversed(ladder):
                for tokens in range(first, graph.num_tokens + 1):
                    found[tokens, graph.num_active_loras].append(graph)
                first = graph.num_tokens + 1
    return dict(found)


def spaced(graphs: Iterable[BatchExecutionDescriptor], without_drafts: int | None) -> list[BatchExecutionDescriptor]:
    """Those of ``graphs`` that are captured, largest first. ``without_drafts``: tokens of a request in a step without
    drafts, whose graphs are all kept, like those that hold any number of requests."""
    kept: list[BatchExecutionDescriptor] = []
    for ladder in _ladders(graphs):
        fixed = ladder[0].uniform_token_count
        kept += ladder if fixed in (None, without_drafts) else _spaced(ladder)
    return sorted(kept, key=lambda graph: -graph.num_tokens)


def _ladders(graphs: Iterable[BatchExecutionDescriptor]) -> list[list[BatchExecutionDescriptor]]:
    """Graphs that differ in size alone, largest first."""
    found: dict[BatchExecutionDescriptor, list[BatchExecutionDescriptor]] = defaultdict(list)
    for graph in graphs:
        found[replace(graph, num_tokens=0, num_reqs=None)].append(graph)
    return [sorted(ladder, key=lambda graph: -graph.num_tokens) for ladder in found.values()]


def _spaced(ladder: Sequence[BatchExecutionDescriptor]) -> list[BatchExecutionDescriptor]:
    """Leave out what no step needs: the next larger rung that is kept pads it little."""
    kept = [ladder[0]]
    sizes = [*(graph.num_tokens for graph in ladder), 0]
    for graph, smaller in zip(ladder[1:], sizes[2:], strict=True):
        # What the smallest step that runs in the larger graph has if this one is left out.
        least = smaller + graph.uniform_token_count
        if graph.num_reqs in KEPT or kept[-1].num_tokens - least > max(LEAST_ROWS, least // PART_OF_ROWS):
            kept.append(graph)
    return kept
