"""Which trees are drafted for what the scheduler asks for, and what of a speculator needs no model."""

from types import SimpleNamespace
from typing import Any

import pytest
import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
from vllm.config.compilation import CUDAGraphMode
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator

from vllm_specext.engine.drafting.chain_graphs import schedule_of_chains
from vllm_specext.engine.drafting.tree_sizes import TreeSizes
from vllm_specext.engine.drafting.tree_speculator import TreeSpeculator
from vllm_specext.tree.budget import TreeShape

SCHEDULE = [[1, 4, 59], [5, 8, 6], [9, 16, 0]]
MOST = [59] * 5 + [6] * 4 + [0] * 8


def sizes(max_rows: int, **given: Any) -> TreeSizes:
    return TreeSizes(TreeShape(59, 6, 10), MOST, max_rows, **given)


@pytest.mark.parametrize(("method", "given"), [("init_cudagraph_manager", [CUDAGraphMode.FULL]), ("capture", [])])
def test_vllms_graphs_are_planned_and_captured_for_the_sizes_that_are_chains(
    method: str, given: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def stock(self: Any, *args: Any) -> None:
        seen.append(self.speculative_config.num_speculative_tokens_per_batch_size)
        raise MemoryError

    monkeypatch.setattr(EagleSpeculator, method, stock)
    config = SimpleNamespace(num_speculative_tokens_per_batch_size=SCHEDULE, schedule=SCHEDULE)
    bare = TreeSpeculator.__new__(TreeSpeculator)
    vars(bare).update({"sizes": sizes(8192), "speculative_config": config})
    with pytest.raises(MemoryError):
        getattr(bare, method)(*given)
    assert seen == [[[1, 4, 0], [5, 8, 6], [9, 16, 0]]]
    assert config.num_speculative_tokens_per_batch_size is SCHEDULE


@pytest.mark.parametrize("schedule", [SCHEDULE, None])
def test_nothing_is_captured_for_chains_that_grow(schedule: Any) -> None:
    config = SimpleNamespace(num_speculative_tokens_per_batch_size=schedule, schedule=schedule or [[1, 16, 4]])
    with schedule_of_chains(config, sizes(8192, grows_chains=True)):
        assert {nodes for _, _, nodes in config.num_speculative_tokens_per_batch_size} == {0}
    assert config.num_speculative_tokens_per_batch_size is schedule


def test_a_level_that_does_not_fit_the_drafters_buffers_is_given_up_for_a_chain() -> None:
    assert sizes(40).shape_for(59, requests=4) == TreeShape(59, 6, 10)
    assert sizes(39).shape_for(59, requests=4) == TreeShape(6, 6, 1)
    assert sizes(4).shape_for(3, requests=8) == TreeShape(3, 3, 1)


@pytest.mark.parametrize(
    ("requests", "shape"), [(5, TreeShape(6, 6, 1)), (8, TreeShape(6, 6, 1)), (9, TreeShape(0, 0, 1))]
)
def test_nothing_larger_is_grown_than_the_schedule_has_for_so_many_requests(requests: int, shape: TreeShape) -> None:
    """As vLLM's warm-up asks, whatever the schedule."""
    assert sizes(8192).shape_for(59, requests) == shape


def test_a_chain_is_grown_where_nothing_else_drafts_it() -> None:
    assert sizes(8192).grown(59, requests=5) is None
    assert sizes(8192, grows_chains=True).grown(59, requests=5) == TreeShape(6, 6, 1)
    assert sizes(8192, grows_chains=True).grown(59, requests=9) is None


def test_the_memory_that_is_measured_is_that_of_the_schedules_trees() -> None:
    assert list(sizes(80).of_schedule(SCHEDULE, most=3)) == [(3, TreeShape(59, 6, 10))]
    assert list(sizes(79).of_schedule(SCHEDULE, most=8)) == [(4, TreeShape(59, 6, 10))]
