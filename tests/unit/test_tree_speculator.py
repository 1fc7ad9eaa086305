"""What the tree speculator does without a model: sizes that do not fit, and graphs."""

from types import SimpleNamespace
from typing import Any

import pytest
import vllm.v1.worker.cpu.shm  # noqa: F401 - on a CPU it has to come before the V2 runner
from vllm.v1.worker.gpu.spec_decode.eagle.speculator import EagleSpeculator

from vllm_specext.engine.tree_speculator import TreeSpeculator
from vllm_specext.tree.budget import TreeShape

SCHEDULE = [[1, 4, 59], [5, 8, 6], [9, 16, 0]]


def speculator(**attributes: Any) -> TreeSpeculator:
    bare = TreeSpeculator.__new__(TreeSpeculator)
    config = SimpleNamespace(num_speculative_tokens_per_batch_size=SCHEDULE, schedule=SCHEDULE)
    most = [59] * 5 + [6] * 4 + [0] * 8
    vars(bare).update({"shape": TreeShape(59, 6, 10), "speculative_config": config, "most_drafted": most} | attributes)
    return bare


def test_decoding_graphs_are_captured_for_the_sizes_that_are_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def capture(self: Any) -> None:
        seen.append(self.speculative_config.num_speculative_tokens_per_batch_size)
        raise MemoryError

    monkeypatch.setattr(EagleSpeculator, "capture", capture)
    with pytest.raises(MemoryError):
        (bare := speculator()).capture()
    assert seen == [[[1, 4, 0], [5, 8, 6], [9, 16, 0]]]
    assert bare.speculative_config.num_speculative_tokens_per_batch_size is SCHEDULE


def test_a_level_that_does_not_fit_the_drafters_buffers_is_given_up_for_a_chain() -> None:
    assert speculator(max_num_tokens=40).shape_for(59, requests=4) == TreeShape(59, 6, 10)
    assert speculator(max_num_tokens=39).shape_for(59, requests=4) == TreeShape(6, 6, 1)
    assert speculator(max_num_tokens=4).shape_for(3, requests=8) == TreeShape(3, 3, 1)


@pytest.mark.parametrize(
    ("requests", "shape"), [(5, TreeShape(6, 6, 1)), (8, TreeShape(6, 6, 1)), (9, TreeShape(0, 0, 1))]
)
def test_nothing_larger_is_grown_than_the_schedule_has_for_so_many_requests(requests: int, shape: TreeShape) -> None:
    """As vLLM's warm-up asks, whatever the schedule."""
    assert speculator(max_num_tokens=8192).shape_for(59, requests) == shape


def test_the_memory_that_is_measured_is_that_of_the_schedules_trees() -> None:
    """With nothing written, whatever the buffers hold."""
    done: list[Any] = []

    def grow(requests: int, shape: TreeShape, *, reads_paths: bool, longest: int) -> None:
        done.append((requests, shape))

    own: dict[str, Any] = {"_grow": grow, "stop_writing": lambda first, end: done.append((first, end))}
    speculator(max_num_tokens=80, max_num_reqs=3, max_model_len=512, **own).rehearse()
    assert done == [(0, 3), (3, TreeShape(59, 6, 10))]
    done.clear()
    speculator(max_num_tokens=79, max_num_reqs=8, max_model_len=512, **own).rehearse()
    assert done == [(0, 4), (4, TreeShape(59, 6, 10))]
