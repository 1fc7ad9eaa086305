"""Short drafts are chains, and their graphs have vLLM's causal attention. What a request's end leaves of a tree runs in
none of these."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
from vllm.config.compilation import CUDAGraphMode

from tests.unit.test_graph_ladders import manager
from tests.unit.test_graph_sizes import CHAIN_ROWS, SHAPE, step
from vllm_specext.engine.hooks.runner_patches import _gather_batch_req_state
from vllm_specext.engine.verification.tree_states import TreeStates
from vllm_specext.options.base import MethodOptions
from vllm_specext.options.swift import SwiftOptions
from vllm_specext.options.trees import GriffinOptions, MoAOptions
from vllm_specext.tree.budget import SIZES, shape_for


def trees(chain_rows: int = CHAIN_ROWS) -> TreeStates:
    made = TreeStates(SHAPE, 4, 512, torch.device("cpu"), chain_rows=chain_rows)
    made.is_chain[:] = [True, True, False, False]
    return made


def captured_with_trees(states: TreeStates, rows: int) -> bool:
    batch: Any = SimpleNamespace(num_reqs=2, num_tokens=2 * rows, query_start_loc=torch.zeros(3, dtype=torch.int32))
    return states.for_capture(batch, 512) is not None


def test_graphs_have_tree_attention_for_the_sizes_that_are_trees() -> None:
    for nodes in (size for size in SIZES if size <= SHAPE.nodes):
        assert captured_with_trees(trees(), 1 + nodes) == (shape_for(nodes, SHAPE).top_k > 1)


def test_where_short_drafts_may_be_trees_all_graphs_have_tree_attention() -> None:
    assert [captured_with_trees(trees(0), rows) for rows in (1, 2, CHAIN_ROWS)] == [False, True, True]
    assert trees(0).fits_graph(np.array([2, 3]), 4)


@pytest.mark.parametrize(
    ("options", "chains"),
    [
        (GriffinOptions(model="any"), True),
        (GriffinOptions(model="any", prediction_tokens=20), False),
        (MoAOptions(model="any"), True),
        (MoAOptions(model="any", client_drafts=True), False),
        (SwiftOptions(), False),
    ],
)
def test_short_drafts_are_chains_but_for_swifts_and_what_requests_bring(options: MethodOptions, chains: bool) -> None:
    assert options.short_are_chains == chains


@pytest.mark.parametrize(
    ("slots", "rows", "fits"),
    [([0, 1], 4, True), ([0, 2], 4, False), ([2], CHAIN_ROWS, False), ([2, 3], CHAIN_ROWS + 1, True)],
)
def test_a_step_with_what_is_left_of_a_tree_runs_in_no_whole_graph(slots: list[int], rows: int, fits: bool) -> None:
    state = SimpleNamespace(idx_mapping_np=np.array(slots))
    runner: Any = SimpleNamespace(model_state=SimpleNamespace(steps=SimpleNamespace(trees=trees())))
    gather = _gather_batch_req_state(lambda self, scheduled, dummy: (state, rows))
    assert gather(runner, None, False) == (state, rows if fits else None)
    graphs = manager([[1, 4, rows - 1], [5, 1000, 0]], decode_query_len=rows)
    found = graphs.dispatch(len(slots), len(slots) * rows, gather(runner, None, False)[1], 0)
    assert (found.cg_mode == CUDAGraphMode.FULL) == fits


@pytest.mark.parametrize(("state", "rows"), [(None, 4), (SimpleNamespace(idx_mapping_np=np.array([2])), 1)])
def test_dummy_steps_and_steps_without_drafts_stay_what_they_are(state: Any, rows: int) -> None:
    runner: Any = SimpleNamespace(model_state=SimpleNamespace(steps=SimpleNamespace(trees=trees())))
    assert _gather_batch_req_state(lambda self, scheduled, dummy: (state, rows))(runner, None, False) == (state, rows)


def test_a_target_that_verifies_no_trees_is_not_asked() -> None:
    state = SimpleNamespace(idx_mapping_np=np.array([0]))
    runner: Any = SimpleNamespace(model_state=SimpleNamespace())
    assert _gather_batch_req_state(lambda self, scheduled, dummy: (state, 4))(runner, None, False) == (state, 4)


def test_a_graph_of_chains_is_not_replayed_on_trees() -> None:
    layout, batch = step([4, 4], 8, 2)
    with pytest.raises(RuntimeError, match="for trees of 4 rows, which it was not captured with"):
        layout.check_replay(batch, CHAIN_ROWS)
    layout.check_replay(batch, 0)
