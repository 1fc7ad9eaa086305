"""Prompt lookup before a drafter's trees: the tokens of plain decoding, longer drafts where a text repeats itself, and
trees elsewhere; the fault below must break it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import ROUND, TIGHT_FOR_TREES, Result, eagle3, moa, of_method, tree
from tests.engine.test_lossless import differing
from tests.engine.workload import DFLASH, GREEDY

Engines = Callable[..., Result]

LEVELS = 4
FAULT = "look_up_without_ancestors"
METHODS = {
    "griffin": tree(24, 4),
    "eagle3-tree": eagle3(24, 4),
    "dflash-tree": of_method("dflash-tree", DFLASH, 24, 4, tree_depth=LEVELS),
    "moa": moa(24, 4),
}
FEW_TOKENS = {"allowed_token_ids": list(range(5, 2048, 40))}
REPEATING = [one | {"sampling": GREEDY | FEW_TOKENS | {"max_tokens": 96, "ignore_eos": True}} for one in ROUND[:8]]
"""With few tokens to choose among, of which no drafter knows, an answer soon goes round in a circle."""


def looking(config: dict[str, Any], tokens: int = 20) -> dict[str, Any]:
    own = config["speculative_config"] | {"prediction_tokens": tokens, "use_prompt": True}
    return {"speculative_config": own}


def per_verification(result: Result) -> float:
    counters = result["counters"]
    return 1 + counters["vllm:spec_decode_num_accepted_tokens"] / counters["vllm:spec_decode_num_drafts"]


@pytest.mark.parametrize(
    ("method", "asynchronous"),
    [
        ("griffin", True),
        *(pytest.param(name, name != "griffin", marks=pytest.mark.extended) for name in METHODS),
    ],
    ids=lambda given: given if isinstance(given, str) else ("sync", "async")[given],
)
def test_tokens_are_those_of_plain_decoding(engines: Engines, method: str, asynchronous: bool) -> None:
    rounds = [[*ROUND, *REPEATING]]
    plain = engines({}, rounds=rounds)
    llm = TIGHT_FOR_TREES if asynchronous else {}
    result = engines(looking(METHODS[method]) | llm, rounds=rounds, keep_async=asynchronous)
    assert differing(result, plain) == []
    assert (result["counters"]["vllm:num_preemptions"] > 0) == asynchronous


def test_what_is_repeated_is_drafted_in_chains_longer_than_trees_are_deep(engines: Engines) -> None:
    plain = engines({}, rounds=[REPEATING])
    trees, both = (engines(config, rounds=[REPEATING]) for config in (tree(24, 4), looking(tree(24, 4))))
    assert differing(trees, plain) == differing(both, plain) == []
    assert per_verification(both) > 2 * per_verification(trees)
    assert per_verification(both) > 5


def test_elsewhere_trees_are_drafted(engines: Engines) -> None:
    trees, both = (engines(config, rounds=[ROUND]) for config in (tree(24, 4), looking(tree(24, 4))))
    assert differing(trees, both) == []
    assert per_verification(both) > 0.97 * per_verification(trees)


def test_a_deliberate_fault_is_noticed(engines: Engines) -> None:
    rounds = [[*ROUND, *REPEATING]]
    plain, faulty = engines({}, rounds=rounds), engines(looking(tree(24, 4)), rounds=rounds, sabotage=FAULT)
    assert differing(faulty, plain) != []
