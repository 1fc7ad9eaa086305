"""Token equality with plain decoding while the number of drafted tokens changes from step to step, for every method;
and as the scheduler chooses it by its clock."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import CHAIN, Result, any_sizes, eagle3, moa, tree
from tests.engine.test_foreign import foreign
from tests.engine.test_lossless import differing
from tests.engine.test_swift import swift
from tests.engine.workload import FOREIGN_BPE

Engines = Callable[..., Result]


TREE = any_sizes(tree(24, 4))


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


@pytest.mark.parametrize(
    ("llm", "asynchronous"),
    [
        pytest.param({"speculative_config": CHAIN}, False, marks=pytest.mark.extended),
        pytest.param({"speculative_config": CHAIN}, True, marks=pytest.mark.extended),
        (TREE, True),
        pytest.param(TREE, False, marks=pytest.mark.extended),
        pytest.param(eagle3(24, 4), False, marks=pytest.mark.extended),
        pytest.param(moa(24, 4), False, marks=pytest.mark.extended),
        pytest.param(swift(), False, marks=pytest.mark.extended),
        pytest.param(foreign("slem", FOREIGN_BPE), False, marks=pytest.mark.extended),
        pytest.param(foreign("tli", FOREIGN_BPE), False, marks=pytest.mark.extended),
    ],
    ids=["chain", "chain-async", "tree-async", "tree", "eagle3", "moa", "swift", "slem", "tli"],
)
def test_any_sizes_one_after_another_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, llm: dict[str, Any], asynchronous: bool
) -> None:
    result = engines(any_sizes(llm), keep_async=asynchronous, sabotage="draw_sizes")
    assert differing(result, plain) == []
    assert len([size for size, count in result["sizes"].items() if count > 10]) >= 3
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60
    depths = 2 if "tree_depth" in any_sizes(llm)["speculative_config"] else 0
    assert len([depth for depth, count in result["depths"].items() if count > 10]) >= depths


@pytest.mark.parametrize(
    "llm", [TREE, pytest.param(any_sizes(moa(24, 4)), marks=pytest.mark.extended)], ids=["griffin", "moa"]
)
def test_replays_that_end_at_several_depths_draft_what_passes_without_graphs_do(
    engines: Engines, plain: Result, llm: dict[str, Any]
) -> None:
    """What CUDA graphs would replay is recorded, in pieces, padded as they are."""
    result = engines(llm, graphs=[2, 5, 8], keep_async=True, sabotage="draw_sizes")
    assert differing(result, plain) == []
    assert set(result["replays"]) == {2, 5, 8}
    assert len([depth for depth, count in result["depths"].items() if count > 10]) >= 2
    eager = engines(llm, keep_async=True, sabotage="draw_sizes")["counters"]
    for counter in ("vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens"):
        assert result["counters"][counter] == pytest.approx(eager[counter], rel=0.02)


@pytest.mark.parametrize(
    ("llm", "fault"),
    [
        (TREE, "draw_sizes_and_skip_compaction"),
        pytest.param({"speculative_config": CHAIN}, "draw_sizes_and_accept_every_draft", marks=pytest.mark.extended),
    ],
    ids=["tree", "chain"],
)
def test_a_deliberate_fault_is_noticed(engines: Engines, plain: Result, llm: dict[str, Any], fault: str) -> None:
    assert differing(engines(any_sizes(llm), sabotage=fault), plain)


def test_the_schedulers_own_choice_gives_the_tokens_of_plain_decoding(engines: Engines, plain: Result) -> None:
    result = engines(TREE)
    assert differing(result, plain) == []
    assert result["sizes"]
