"""Token equality of trees and chains of vLLM's EAGLE-3 drafter with plain decoding on the real engine, for every kind
of request; the fault below must break it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import TIGHT_FOR_TREES, Result, eagle3
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_trees import truncated
from tests.engine.workload import DRAFTS

Engines = Callable[..., Result]


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


@pytest.mark.parametrize(
    ("nodes", "top_k", "llm", "asynchronous"),
    [
        pytest.param(24, 4, {}, False, marks=pytest.mark.extended),
        pytest.param(24, 4, {}, True, marks=pytest.mark.extended),
        pytest.param(59, 10, {}, True, marks=pytest.mark.extended),
        (59, 10, TIGHT_FOR_TREES, False),
        pytest.param(59, 10, TIGHT_FOR_TREES, True, marks=pytest.mark.extended),
    ],
    ids=["24-roomy-sync", "24-roomy-async", "59-roomy-async", "59-tight-sync", "59-tight-async"],
)
def test_trees_of_eagle3_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, nodes: int, top_k: int, llm: dict[str, Any], asynchronous: bool
) -> None:
    result = engines(eagle3(nodes, top_k) | llm, keep_async=asynchronous)
    assert result["v2"]
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 130
    assert result["counters"]["vllm:prefix_cache_hits"] > 0
    assert result["sizes"][str(nodes)] > 60
    if llm:
        assert result["counters"]["vllm:num_preemptions"] >= 3
        assert len(truncated(result, nodes)) >= 2


@pytest.mark.parametrize(
    "schedule", [None, pytest.param([[1, 2, 59], [3, 4, 24], [5, 6, 4], [7, 8, 0]], marks=pytest.mark.extended)]
)
def test_chains_and_trees_by_load_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, schedule: list[list[int]] | None
) -> None:
    by_load = {"num_speculative_tokens_per_batch_size": schedule}
    result = engines(eagle3(59, 10, **by_load) if schedule else eagle3(DRAFTS, 1), keep_async=True)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 40


@pytest.mark.extended
def test_compiled_trees_of_eagle3_give_the_tokens_of_compiled_plain_decoding(engines: Engines) -> None:
    compiled = {"enforce_eager": False}
    assert differing(engines(eagle3(24, 4) | compiled), engines(compiled)) == []


@pytest.mark.extended
def test_a_deliberate_fault_in_a_tree_is_noticed(engines: Engines, plain: Result) -> None:
    assert is_noticed(engines, plain, eagle3(24, 4), "skip_compaction")
