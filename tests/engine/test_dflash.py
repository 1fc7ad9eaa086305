"""Token equality of trees and chains of a DFlash drafter with plain decoding on the real engine, for every kind of
request; the fault below must break it. What is drafted is compared in ``test_dflash_drafting.py``."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import TIGHT_FOR_TREES, Result, of_method
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_trees import truncated
from tests.engine.workload import DFLASH, DRAFTS

Engines = Callable[..., Result]

ACCEPTED = 200
"""Drafted tokens that have to be accepted at least, so that more than rejections is tested."""


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


TIGHT = TIGHT_FOR_TREES | {"max_num_batched_tokens": 160}
"""More requests begin, so that one is preempted here too."""


def dflash(nodes: int, top_k: int, **own: Any) -> dict[str, Any]:
    return of_method("dflash-tree", DFLASH, nodes, top_k, **own)


@pytest.mark.parametrize(
    ("nodes", "top_k", "llm", "asynchronous"),
    [
        pytest.param(24, 4, {}, False, marks=pytest.mark.extended),
        pytest.param(24, 10, {}, True, marks=pytest.mark.extended),
        (59, 10, TIGHT, False),
        pytest.param(59, 10, TIGHT, True, marks=pytest.mark.extended),
    ],
    ids=["24-roomy-sync", "24-roomy-async", "59-tight-sync", "59-tight-async"],
)
def test_trees_of_dflash_give_the_tokens_of_plain_decoding(
    engines: Engines,
    plain: Result,
    nodes: int,
    top_k: int,
    llm: dict[str, Any],
    asynchronous: bool,
) -> None:
    result = engines(dflash(nodes, top_k) | llm, keep_async=asynchronous)
    assert result["v2"]
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > ACCEPTED
    assert result["counters"]["vllm:prefix_cache_hits"] > 0
    assert result["sizes"][str(nodes)] > 60
    if llm:
        assert result["counters"]["vllm:num_preemptions"] >= 1
        assert len(truncated(result, nodes)) >= 1


@pytest.mark.extended
@pytest.mark.parametrize("schedule", [None, [[1, 2, 59], [3, 4, 24], [5, 6, 4], [7, 8, 0]]])
def test_chains_and_trees_by_load_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, schedule: list[list[int]] | None
) -> None:
    by_load = {"num_speculative_tokens_per_batch_size": schedule}
    config = dflash(59, 10, **by_load) if schedule else dflash(DRAFTS, 1)
    assert differing(engines(config, keep_async=True), plain) == []


@pytest.mark.extended
def test_trees_drafted_in_graphs_are_those_drafted_without(engines: Engines, plain: Result) -> None:
    """What CUDA graphs would replay is recorded, padded as they are."""
    result = engines(dflash(24, 10), graphs=[2, 5, 8], keep_async=True)
    assert differing(result, plain) == []
    assert set(result["replays"]) == {2, 5, 8}


@pytest.mark.extended
def test_compiled_trees_of_dflash_give_the_tokens_of_compiled_plain_decoding(engines: Engines) -> None:
    compiled = {"enforce_eager": False}
    assert differing(engines(dflash(24, 10) | compiled), engines(compiled)) == []


def test_a_deliberate_fault_in_a_tree_is_noticed(engines: Engines, plain: Result) -> None:
    assert is_noticed(engines, plain, dflash(24, 10), "skip_compaction")


def test_vllms_own_method_runs_on_a_cpu(engines: Engines) -> None:
    """Its inputs are laid out by ``cpu_runner/block_drafting.py``."""
    rows = [
        {"ids": list(range(100, 100 + 40 * n)), "sampling": {"temperature": 0.0, "max_tokens": 16, "ignore_eos": True}}
        for n in (1, 2, 3)
    ]
    config = {"method": "dflash", "model": str(DFLASH), "num_speculative_tokens": DRAFTS}
    result = engines({"speculative_config": config}, rounds=[rows])
    assert differing(result, engines({}, rounds=[rows])) == []
    assert result["counters"]["vllm:spec_decode_num_drafts"] > 15
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 10
