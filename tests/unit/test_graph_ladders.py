"""A step runs in the smallest whole graph of its own length that holds it, whatever is captured for other lengths."""

from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager

from vllm_specext.engine.graph_ladders import KEPT, LEAST_ROWS, PART_OF_ROWS, use_ladders
from vllm_specext.engine.graph_sizes import capture_all_sizes

SIZES = [1, 2, 4, *range(8, 256, 8), *range(256, 513, 16)]
"""vLLM's own."""
SCHEDULE = [[1, 8, 59], [9, 15, 32], [16, 30, 16], [31, 56, 8], [57, 73, 6], [74, 128, 3], [129, 1000, 0]]
LENGTHS = [1, 4, 7, 9, 17, 33, 60]


def manager(
    schedule: list[list[int]] | None = SCHEDULE,
    decode_query_len: int = 60,
    loras: tuple[int, ...] = (0,),
    stock: bool = False,
    sizes: Sequence[int] = SIZES,
) -> Any:
    """With the graphs that vLLM and we choose, or vLLM alone, as if they were captured."""
    use_ladders()
    capture_all_sizes()
    made: Any = CudaGraphManager.__new__(CudaGraphManager)
    own = SimpleNamespace(
        num_speculative_tokens_per_batch_size=schedule,
        uses_dynamic_speculative_decoding=lambda: schedule is not None,
    )
    made.vllm_config = SimpleNamespace(
        speculative_config=own,
        num_speculative_tokens=59,
        cache_config=SimpleNamespace(use_kda_recoverssm=False),
        parallel_config=SimpleNamespace(use_ubatching=False),
    )
    made.compilation_config = SimpleNamespace(cudagraph_capture_sizes=sizes, max_cudagraph_capture_size=512)
    made.cudagraph_mode, made.decode_query_len = CUDAGraphMode.FULL_AND_PIECEWISE, decode_query_len
    made.max_num_reqs, made.varlen_decode, made.ubatch_runner = 512, False, None
    made.lora_capture_cases, made._graphs_captured = list(loras), True
    made._lora_dispatch_map, made._max_lora_case = {case: case for case in loras}, max(loras)
    made._candidates, made._capture_descs = {}, {}
    choose: Any = CudaGraphManager._init_candidates
    (choose.__wrapped__ if stock else choose)(made)
    return made


def steps(length: int) -> Iterator[tuple[int, int]]:
    """Numbers of requests of so many tokens each for which there is room in a graph, and of tokens."""
    return ((requests, requests * length) for requests in range(1, 512 // length + 1))


def graph_of(manager: Any, requests: int, tokens: int, lora: int = 0) -> BatchExecutionDescriptor:
    found: BatchExecutionDescriptor = manager.dispatch(requests, tokens, tokens // requests, lora)
    return found


def captured(manager: Any, length: int) -> list[int]:
    """Numbers of requests."""
    graphs = manager._capture_descs.get(CUDAGraphMode.FULL, [])
    return sorted(graph.num_reqs for graph in graphs if graph.uniform_token_count == length)


@pytest.mark.parametrize("length", LENGTHS)
def test_every_step_of_one_length_runs_in_a_whole_graph_that_pads_it_little(length: int) -> None:
    made = manager()
    rungs = captured(made, length)
    for requests, tokens in steps(length):
        if requests <= rungs[-1]:
            graph = graph_of(made, requests, tokens)
            assert (graph.cg_mode, graph.uniform_token_count) == (CUDAGraphMode.FULL, length)
            assert graph.num_tokens == min(rung for rung in rungs if rung >= requests) * length
            # vLLM's own rungs of long drafts may be further apart than a sixteenth.
            assert graph.num_tokens - tokens <= max(LEAST_ROWS, tokens // PART_OF_ROWS, 2 * length)
        else:
            assert graph_of(made, requests, tokens).cg_mode == CUDAGraphMode.PIECEWISE


def test_vllm_alone_runs_many_of_them_in_pieces() -> None:
    """If this fails, vLLM has ladders of its own, and ours can go."""
    made = manager(stock=True)
    all_steps = [step for length in LENGTHS for step in steps(length) if step[0] <= captured(made, length)[-1]]
    in_pieces = [step for step in all_steps if graph_of(made, *step).cg_mode == CUDAGraphMode.PIECEWISE]
    assert len(in_pieces) > 0.3 * len(all_steps)


def test_steps_without_drafts_keep_all_of_vllms_graphs() -> None:
    assert captured(manager(), 1) == SIZES


def test_steps_with_drafts_have_fewer_graphs_and_those_of_few_requests() -> None:
    ours, vllms = (captured(manager(stock=stock), 4) for stock in (False, True))
    assert set(KEPT) <= set(ours) < set(vllms)
    assert ours[-1] == vllms[-1] == 512 // 4
    assert len(ours) < 0.7 * len(vllms)


def test_a_drafters_single_tokens_have_fewer_graphs_too() -> None:
    """They are drafted with drafts of all lengths, and so are captured for each."""
    rungs = captured(manager(decode_query_len=1), 1)
    assert set(KEPT) <= set(rungs) < set(SIZES)


@pytest.mark.parametrize("sizes", [[60], [1, 60], []])
def test_a_ladder_may_have_one_rung_or_none(sizes: list[int]) -> None:
    made = manager(schedule=[[1, 1000, 59]], sizes=sizes)
    assert captured(made, 60) == ([1] if sizes else [])
    found = graph_of(made, 1, 60).cg_mode
    assert found == (CUDAGraphMode.FULL if sizes else CUDAGraphMode.NONE)


def test_where_all_drafts_are_equally_long_vllm_chooses() -> None:
    made = manager(schedule=None)
    assert captured(made, 60) == list(range(1, 9))
    assert made._capture_descs[CUDAGraphMode.PIECEWISE][-1].num_tokens == 1


def test_graphs_with_adapters_are_for_steps_with_adapters() -> None:
    made = manager(loras=(0, 2))
    for lora in (0, 2):
        graph = graph_of(made, 9, 36, lora)
        assert (graph.cg_mode, graph.num_active_loras) == (CUDAGraphMode.FULL, lora)


def test_steps_with_prompts_run_in_pieces() -> None:
    graph = manager().dispatch(3, 100, None, 0)
    assert (graph.cg_mode, graph.num_tokens) == (CUDAGraphMode.PIECEWISE, 104)
