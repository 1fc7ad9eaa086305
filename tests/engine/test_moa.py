"""Token equality of MoA with plain decoding on the real engine, for every kind of request: chains and trees, with and
without the target's last layers in the drafter."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import ROUND, TIGHT_FOR_TREES, Result, moa
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.workload import GREEDY

Engines = Callable[..., Result]


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


def accepted(result: Result) -> float:
    """Drafted tokens per verification."""
    counters = result["counters"]
    return float(counters["vllm:spec_decode_num_accepted_tokens"] / counters["vllm:spec_decode_num_drafts"])


@pytest.mark.parametrize(
    ("nodes", "top_k", "inferred", "llm", "asynchronous"),
    [
        pytest.param(4, 1, 0, {}, True, marks=pytest.mark.extended),
        pytest.param(4, 1, 1, {}, False, marks=pytest.mark.extended),
        (24, 4, 0, TIGHT_FOR_TREES, True),
        (62, 8, 1, {}, False),
    ],
    ids=["chain", "chain-inference", "tree-tight-async", "tree-inference"],
)
def test_moa_gives_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, nodes: int, top_k: int, inferred: int, llm: dict[str, Any], asynchronous: bool
) -> None:
    config = moa(nodes, top_k, target_layer_inference=inferred)
    result = engines(config | llm, keep_async=asynchronous)
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert result["counters"]["vllm:prefix_cache_hits"] > 0
    assert result["sizes"][str(nodes)] > 60
    if llm:
        assert result["counters"]["vllm:num_preemptions"] >= 3


@pytest.mark.extended
def test_trees_of_several_sizes_and_none_give_the_tokens_of_plain_decoding(engines: Engines, plain: Result) -> None:
    schedule = [[1, 2, 62], [3, 4, 24], [5, 6, 4], [7, 8, 0]]
    result = engines(moa(62, 8, num_speculative_tokens_per_batch_size=schedule))
    assert differing(result, plain) == []
    assert all(result["sizes"][size] > 0 for size in ("62", "24", "4"))


@pytest.mark.extended
def test_trees_grown_in_graphs_are_those_grown_without(engines: Engines, plain: Result) -> None:
    result = engines(moa(24, 4), graphs=[2, 5, 8])
    assert differing(result, plain) == []
    assert set(result["replays"]) == {2, 5, 8}
    assert accepted(result) == pytest.approx(accepted(engines(moa(24, 4))), rel=0.02)


def test_a_cached_prefix_brings_the_drafters_rows_along(engines: Engines) -> None:
    """The same long prompt again: all but its last block are cached, and what is drafted is as good as before."""
    asked = [[{"ids": ROUND[2]["ids"], "sampling": GREEDY | {"max_tokens": 32, "ignore_eos": True}}]]
    config = moa(24, 4, calibrated_trees=False)  # or the second request would begin with what the first has taught
    once, twice = engines(config, rounds=asked), engines(config, rounds=asked * 2)
    assert twice["counters"]["vllm:prefix_cache_hits"] >= 32 * ((len(ROUND[2]["ids"]) - 1) // 32)
    assert accepted(twice) == pytest.approx(accepted(once), rel=0.05)


@pytest.mark.extended
def test_compiled_moa_gives_the_tokens_of_compiled_plain_decoding(engines: Engines) -> None:
    compiled = {"enforce_eager": False}
    assert differing(engines(moa(24, 4, target_layer_inference=1) | compiled), engines(compiled)) == []


@pytest.mark.parametrize(
    "sabotage",
    [pytest.param("flip_an_ancestor_bit", marks=pytest.mark.extended), "write_drafted_keys_a_slot_early"],
)
def test_a_deliberate_fault_is_noticed(engines: Engines, plain: Result, sabotage: str) -> None:
    assert is_noticed(engines, plain, moa(24, 4, target_layer_inference=1), sabotage)
