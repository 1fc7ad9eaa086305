"""No CUDA graph is captured, or replayed, that would run trees as if they were chains."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
from vllm.config import CompilationConfig, CUDAGraphMode
from vllm.config.compilation import CompilationMode
from vllm.v1.worker.gpu.cudagraph_utils import BatchExecutionDescriptor, CudaGraphManager
from vllm.v1.worker.gpu.spec_decode.target_dependent_ar.cudagraph_utils import SpeculatorCudaGraphManager

from vllm_specext.engine.graph_sizes import capture_all_sizes, capture_no_mixed_batches, drafted_sizes
from vllm_specext.engine.verification.layout import TreeLayout
from vllm_specext.engine.verification.model_state import with_our_verification
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.tree.budget import TreeShape

SHAPE = TreeShape(nodes=59, depth=6, top_k=10)
CHAIN_ROWS = 1 + SHAPE.depth


def compilation(mode: str, **changes: Any) -> CompilationConfig:
    config = CompilationConfig(mode=CompilationMode.VLLM_COMPILE, cudagraph_mode=mode, **changes)
    config.set_splitting_ops_for_v1(all2all_backend="naive")
    return config


@pytest.mark.parametrize(
    ("mode", "changes", "lowered"),
    [
        ("FULL", {}, "FULL_AND_PIECEWISE"),
        ("FULL", {"splitting_ops": []}, "FULL_DECODE_ONLY"),
        ("FULL_AND_PIECEWISE", {"splitting_ops": []}, "FULL_DECODE_ONLY"),  # vLLM makes FULL of it
        ("FULL_AND_PIECEWISE", {"pass_config": {"fuse_attn_quant": True}}, "FULL_DECODE_ONLY"),  # and of this
        ("FULL_AND_PIECEWISE", {}, "FULL_AND_PIECEWISE"),
        ("FULL_DECODE_ONLY", {}, "FULL_DECODE_ONLY"),
        ("PIECEWISE", {}, "PIECEWISE"),
        ("NONE", {}, "NONE"),
    ],
)
def test_graphs_of_mixed_batches_are_given_up(mode: str, changes: dict[str, Any], lowered: str) -> None:
    config = compilation(mode, **changes)
    before = config.cudagraph_mode
    capture_no_mixed_batches(config)
    assert config.cudagraph_mode == CUDAGraphMode[lowered]
    assert config.cudagraph_mode.mixed_mode() != CUDAGraphMode.FULL
    assert (before == CUDAGraphMode.FULL) == (config.cudagraph_mode != before)


def test_the_state_of_a_target_with_trees_lowers_the_mode() -> None:
    config = compilation("FULL")
    tree = SimpleNamespace(
        tree=SHAPE,
        levels=SHAPE.depth,
        options=SimpleNamespace(method="griffin", samples_drafts=False, short_are_chains=True),
    )

    class Base:
        def __init__(self, vllm_config: Any) -> None:
            self.vllm_config = vllm_config
            self.model_config = SimpleNamespace(logits_processors=None)
            self.max_num_reqs, self.max_model_len, self.device = 2, 512, torch.device("cpu")

    given: Any = SimpleNamespace(speculative_config=tree, compilation_config=config)
    with_our_verification(Base, tree)(given)  # type: ignore[call-arg, arg-type]
    assert config.cudagraph_mode == CUDAGraphMode.FULL_AND_PIECEWISE


def step(rows: list[int], tokens: int, requests: int, chains: bool = False) -> tuple[TreeLayout, Any]:
    """A step of requests with so many rows, in a graph of ``tokens`` and ``requests``."""
    count = len(rows)
    first = np.concatenate(([0], np.cumsum(rows)))
    batch: Any = SimpleNamespace(
        num_draft_tokens_per_req=np.array(rows) - 1,
        num_scheduled_tokens=np.array(rows),
        query_start_loc=torch.from_numpy(first).int(),
        query_start_loc_np=first,
        seq_lens=torch.tensor(rows, dtype=torch.int32),
        seq_lens_cpu_upper_bound=torch.tensor(rows),
        idx_mapping=torch.arange(count),
        idx_mapping_np=np.arange(count),
        positions=torch.zeros(first[-1], dtype=torch.int64),
        num_tokens_after_padding=tokens,
        num_reqs_after_padding=requests,
    )
    trees = TreeStates(SHAPE, 8, 512, torch.device("cpu"))
    trees.is_chain[:] = chains
    layout = trees.lay_out(batch, torch.zeros(8, dtype=torch.int32))
    assert layout is not None
    return layout, batch


@pytest.mark.parametrize(("tokens", "requests"), [(64, 64), (512, 256), (128, 1)])
def test_a_graph_that_holds_no_equally_long_trees_is_not_replayed_on_them(tokens: int, requests: int) -> None:
    layout, batch = step([60], tokens, requests)
    with pytest.raises(RuntimeError, match="for trees of 60 rows, which it was not captured with"):
        layout.check_replay(batch, CHAIN_ROWS)


def test_graphs_of_equally_long_trees_and_of_chains_are_replayed() -> None:
    for layout, batch in (step([60, 60], 120, 2), step([60], 240, 4), step([7, 7], 64, 64, chains=True)):
        layout.check_replay(batch, CHAIN_ROWS)


@pytest.mark.parametrize(
    ("schedule", "sizes", "expected"),
    [
        ([[1, 1000, 24]], [1, 2, 4, 8, 64], {1: [24], 2: [24], 4: [24], 8: [24], 16: [24]}),
        ([[1, 16, 24]], [], {}),
        (
            [[1, 2, 59], [3, 6, 24], [7, 12, 6], [13, 16, 0]],
            [1, 2, 4, 8, 16],
            {1: [59], 2: [59], 4: [24], 6: [24], 8: [6], 12: [6], 16: [0]},
        ),
        ([[1, 5, 24], [6, 16, 4]], [1, 2], {1: [24], 2: [24]}),  # no batch is larger than the largest graph
    ],
)
def test_a_batch_is_padded_to_no_number_that_the_schedule_drafts_less_for(
    schedule: list[list[int]], sizes: list[int], expected: dict[int, list[int]]
) -> None:
    config: Any = SimpleNamespace(
        speculative_config=SimpleNamespace(schedule=schedule, adapts=False),
        scheduler_config=SimpleNamespace(max_num_seqs=16),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=sizes),
        num_speculative_tokens=59,
    )
    assert drafted_sizes(config) == expected


def test_where_the_scheduler_chooses_all_sizes_up_to_the_schedules_are_captured() -> None:
    schedule = [[1, 2, 24], [3, 6, 6], [7, 12, 2], [13, 1000, 0]]
    config: Any = SimpleNamespace(
        speculative_config=SimpleNamespace(schedule=schedule, adapts=True, sizes=[0, 2, 6, 24]),
        scheduler_config=SimpleNamespace(max_num_seqs=12),
        compilation_config=SimpleNamespace(cudagraph_capture_sizes=[1, 4, 12]),
        num_speculative_tokens=24,
    )
    all_sizes = [0, 2, 6, 24]
    assert drafted_sizes(config) == {1: all_sizes, 2: all_sizes, 4: [0, 2, 6], 6: [0, 2, 6], 12: [0, 2]}


def test_vllms_captures_see_all_sizes_whatever_max_num_seqs_is() -> None:
    capture_all_sizes()
    from vllm.v1.spec_decode.dynamic import utils
    from vllm.v1.worker.gpu import cudagraph_utils
    from vllm.v1.worker.gpu.spec_decode.target_dependent_ar import cudagraph_utils as of_chains

    asked: Any = ([[1, 16, 6], [17, 1000, 0]], 4, 6)
    for module in (cudagraph_utils, of_chains):
        assert set(module.build_dynamic_sd_schedule_lookup(*asked)[1:]) == {6, 0}
    assert set(utils.build_dynamic_sd_schedule_lookup(*asked)[1:]) == {6}


def test_chains_of_every_length_that_may_be_chosen_are_captured_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM drafts a chain in one graph of its length, and in none where that is not captured. The schedule's ranges for
    trees draft no chains, and those of the shortest begin after ``max_num_seqs``."""
    capture_all_sizes()
    monkeypatch.setattr(CudaGraphManager, "capture", lambda self, *args: None)
    schedule = [[1, 2, 0], [3, 4, 6], [5, 8, 4], [9, 16, 2], [17, 1000, 0]]
    own = SimpleNamespace(num_speculative_tokens_per_batch_size=schedule)
    manager: Any = SpeculatorCudaGraphManager.__new__(SpeculatorCudaGraphManager)
    manager.vllm_config = SimpleNamespace(speculative_config=own, num_speculative_tokens=59)
    manager.max_num_reqs = 4
    manager._capture_descs = {
        CUDAGraphMode.FULL: [BatchExecutionDescriptor(CUDAGraphMode.FULL, size, size) for size in (4, 2, 1)]
    }
    manager.capture(None, None, None, None, [], None, specialize_spec_tokens=True)
    found = {(desc.num_reqs, desc.num_speculative_tokens) for desc in manager._capture_descs[CUDAGraphMode.FULL]}
    assert found == {(size, length) for size in (1, 2, 4) for length in (6, 4, 2)}
