"""Token equality of draft trees with plain decoding on the real engine, for every kind of request; the faults below
must break it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import ROUND, TIGHT_FOR_TREES, Result, tree
from tests.engine.test_lossless import FEW, differing, is_noticed
from tests.engine.workload import GREEDY

Engines = Callable[..., Result]


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


@pytest.mark.parametrize(
    ("nodes", "top_k", "llm", "asynchronous"),
    [
        pytest.param(8, 2, {}, False, marks=pytest.mark.extended),
        (24, 4, {}, True),
        pytest.param(60, 10, {}, False, marks=pytest.mark.extended),
        pytest.param(24, 4, TIGHT_FOR_TREES, False, marks=pytest.mark.extended),
        (60, 10, TIGHT_FOR_TREES, True),
    ],
    ids=["8-roomy-sync", "24-roomy-async", "60-roomy-sync", "24-tight-sync", "60-tight-async"],
)
def test_trees_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, nodes: int, top_k: int, llm: dict[str, Any], asynchronous: bool
) -> None:
    result = engines(tree(nodes, top_k) | llm, keep_async=asynchronous)
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 130
    assert result["counters"]["vllm:prefix_cache_hits"] > 0
    assert result["sizes"][str(nodes)] > 60
    if llm:
        assert result["counters"]["vllm:num_preemptions"] >= 3
        assert len(truncated(result, nodes)) >= 2


def truncated(result: Result, *whole: int) -> set[str]:
    """Sizes of the trees of which the scheduler took only a part."""
    return result["sizes"].keys() - {str(nodes) for nodes in whole}


@pytest.mark.extended
def test_trees_accept_more_per_verification_than_chains_of_their_depth(engines: Engines) -> None:
    def acceptance(result: Result) -> float:
        counters = result["counters"]
        return float(counters["vllm:spec_decode_num_accepted_tokens"] / counters["vllm:spec_decode_num_drafts"])

    chain = {"num_speculative_tokens": 6, "tree_top_k": 1, "num_speculative_tokens_per_batch_size": [[1, 8, 6]]}
    six = engines({"speculative_config": tree(60, 10)["speculative_config"] | chain})
    assert acceptance(engines(tree(60, 10), keep_async=False)) > 1.2 * acceptance(six)


def test_trees_whose_size_follows_the_load_give_the_tokens_of_plain_decoding(engines: Engines, plain: Result) -> None:
    schedule = [[1, 2, 60], [3, 4, 24], [5, 6, 4], [7, 8, 0]]
    result = engines(tree(60, 10, schedule))
    assert differing(result, plain) == []
    assert all(result["sizes"][size] > 0 for size in ("60", "24", "4"))


@pytest.mark.extended
def test_compiled_trees_give_the_tokens_of_compiled_plain_decoding(engines: Engines) -> None:
    compiled = {"enforce_eager": False}
    assert differing(engines(tree(24, 4) | compiled), engines(compiled)) == []


def test_trees_grown_in_graphs_are_those_grown_without(engines: Engines, plain: Result) -> None:
    """What CUDA graphs would replay is recorded, padded as they are."""
    result = engines(tree(24, 4), rounds=[FEW], graphs=[2, 5, 8])
    assert differing(result, {"outputs": plain["outputs"][: len(FEW)]}) == []
    assert set(result["replays"]) == {2, 5, 8}
    eager = engines(tree(24, 4), rounds=[FEW])["counters"]
    for counter in ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens"):
        assert result["counters"][counter] == pytest.approx(eager[counter], rel=0.02)


def test_trees_end_at_the_last_position_of_the_context(engines: Engines) -> None:
    """Requests of several lengths run into the end of the context, sampled and greedy, with trees of all sizes."""
    length = 128
    sampling = (GREEDY, {"temperature": 1.0}, {"temperature": 0.8, "repetition_penalty": 1.1})
    ends = [
        {"ids": request["ids"][: 60 + 3 * place], "sampling": kind | {"seed": place, "ignore_eos": True}}
        for place, request in enumerate(ROUND[:12])
        for kind in (sampling[place % 3] | {"max_tokens": length},)
    ]
    short = {"max_model_len": length}
    plain = engines(short, rounds=[ends])
    assert {len(one["ids"]) + len(asked["ids"]) for one, asked in zip(plain["outputs"], ends, strict=True)} == {length}
    result = engines(tree(24, 4) | short, rounds=[ends], keep_async=True)
    assert differing(result, plain) == []
    assert len(truncated(result, 24)) >= 10


@pytest.mark.parametrize(
    "sabotage",
    [
        "skip_compaction",
        *(pytest.param(x, marks=pytest.mark.extended) for x in ("flip_an_ancestor_bit", "add_a_level_to_every_depth")),
    ],
)
def test_a_deliberate_fault_in_a_tree_is_noticed(engines: Engines, plain: Result, sabotage: str) -> None:
    assert is_noticed(engines, plain, tree(24, 4), sabotage)
