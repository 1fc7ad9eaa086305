"""Token equality with plain decoding on the real engine in float32, greedy and seeded; the faults below must break
it."""

from collections.abc import Callable
from typing import Any

import pytest
from vllm.platforms import current_platform

from tests.engine.conftest import AGAIN, CHAIN, ROUND, TIGHT, Result, tree
from tests.engine.workload import DRAFTS

Engines = Callable[..., Result]
ASKED = ROUND + AGAIN


def differing(one: Result, other: Result) -> list[int]:
    """Indices of requests whose tokens differ."""
    pairs = zip(one["outputs"], other["outputs"], strict=True)
    return [index for index, (a, b) in enumerate(pairs) if a["ids"] != b["ids"]]


FEW = ROUND[:12]
"""Enough for a fault to show."""


def is_noticed(engines: Engines, plain: Result, llm: dict[str, Any], sabotage: str) -> bool:
    faulty = engines(llm, rounds=[FEW], sabotage=sabotage)
    return differing(faulty, {"outputs": plain["outputs"][: len(FEW)]}) != []


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    result = engines({})
    assert result["v2"]
    return result


def without_drafts(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [one | {"sampling": one["sampling"] | {"extra_args": {"speculation": False}}} for one in requests]


def chain(engines: Engines, llm: dict[str, Any] | None = None, **switches: Any) -> Result:
    return engines({"speculative_config": CHAIN} | (llm or {}), **switches)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("llm", [{}, pytest.param(TIGHT, marks=pytest.mark.extended)], ids=["roomy", "tight"])
def test_chains_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, llm: dict[str, Any], asynchronous: bool
) -> None:
    result = chain(engines, llm, keep_async=asynchronous)
    assert result["v2"]
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60
    assert result["counters"]["vllm:prefix_cache_hits"] > 0
    assert (result["counters"]["vllm:num_preemptions"] > 0) == bool(llm)


COMPILED: dict[str, Any] = {"enforce_eager": False}
TRACED = COMPILED | {"compilation_config": {"mode": 2, "backend": "eager"}}
"""The passes that are compiled, run as Dynamo traced them. The compiler itself takes most of a minute."""


@pytest.mark.parametrize(
    "llm", [TRACED, pytest.param(COMPILED, marks=pytest.mark.extended)], ids=["traced", "compiled"]
)
def test_compiled_chains_give_the_tokens_of_requests_without_drafts(engines: Engines, llm: dict[str, Any]) -> None:
    """Compiled and eager models round differently, so that each is compared with its own kind: here of one engine,
    because it is compiling that takes long."""
    compiled = chain(engines, llm, rounds=[ROUND, without_drafts(ROUND)])
    drafted, plain = ({"outputs": compiled["outputs"][part]} for part in (slice(len(ROUND)), slice(len(ROUND), None)))
    assert differing(drafted, plain) == []
    assert compiled["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60


def test_plain_decoding_and_drafts_have_the_same_arithmetic(engines: Engines, plain: Result) -> None:
    """Of the target's 12 layers, one of GRIFFIN's, and GRIFFIN's fusion."""
    if not current_platform.is_cpu():
        pytest.skip("for CPUs")
    target = 25 + 12 + 4 * 12
    assert plain["shortened"] == target
    assert chain(engines, keep_async=False)["shortened"] > target
    compiled = chain(engines, TRACED, rounds=[ROUND, without_drafts(ROUND)])
    assert compiled["shortened"] == 0


@pytest.mark.extended
def test_compiled_chains_give_the_tokens_of_compiled_plain_decoding(engines: Engines) -> None:
    compiled = chain(engines, COMPILED)
    assert differing(compiled, engines(COMPILED)) == []
    assert compiled["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60


@pytest.mark.extended
def test_chains_whose_length_follows_the_load_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result
) -> None:
    schedule = [[1, 2, DRAFTS], [3, 4, 2], [5, 6, 1], [7, 8, 0]]
    result = chain(engines, {"speculative_config": CHAIN | {"num_speculative_tokens_per_batch_size": schedule}})
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 30


@pytest.mark.extended
def test_greedy_chains_give_the_tokens_of_stock_vllm(engines: Engines) -> None:
    """Stock vLLM chooses its V1 runner on a CPU; only its greedy requests draw no noise and can be compared."""
    stock = engines({}, v2=False)
    assert not stock["v2"]
    greedy = {index for index, request in enumerate(ASKED) if request["sampling"]["temperature"] == 0}
    assert len(greedy) >= 8
    assert greedy.isdisjoint(differing(stock, chain(engines, {}, keep_async=False)))


@pytest.mark.parametrize("llm", [{}, tree(24, 4)], ids=["chain", "tree"])
def test_logprobs_are_those_of_plain_decoding(engines: Engines, plain: Result, llm: dict[str, Any]) -> None:
    """Of generated tokens, of prompts, and of tokens that the request names."""
    result = chain(engines, llm, keep_async=bool(llm))
    compared = dict.fromkeys(("logprobs", "prompt_logprobs"), 0)
    for one, other in zip(result["outputs"], plain["outputs"], strict=True):
        for kind in compared:
            assert len(one[kind]) == len(other[kind])
            for ours, theirs in zip(one[kind], other[kind], strict=True):
                assert ours == pytest.approx(theirs, abs=1e-4)
            compared[kind] += len(one[kind])
    assert compared["logprobs"] > 50
    assert compared["prompt_logprobs"] > 50
    named = [index for index, request in enumerate(ASKED) if "logprob_token_ids" in request["sampling"]]
    assert all({"11", "198", "220"} <= row.keys() for index in named for row in result["outputs"][index]["logprobs"])


@pytest.mark.parametrize("sabotage", ["shift_target_positions", "accept_every_draft"])
def test_a_deliberate_fault_is_noticed(engines: Engines, plain: Result, sabotage: str) -> None:
    assert is_noticed(engines, plain, {"speculative_config": CHAIN}, sabotage)
