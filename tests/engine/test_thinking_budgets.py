"""Requests with budgets for thinking are drafted trees, whose nodes have the path to them before them, and get the
tokens of plain decoding; the fault below must break it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Result
from tests.engine.test_lossless import differing
from tests.engine.test_path_text import TREES

Engines = Callable[..., Result]

REASONS: dict[str, Any] = {"reasoning_config": {"reasoning_start_str": "(", "reasoning_end_str": " or)"}}
BUDGETS = (0, 1, 2, 5, 9, None)
ASKED = [
    {"ids": ROUND[place % len(ROUND)]["ids"], "sampling": {"temperature": heat, "seed": place, **rest}}
    for place, (heat, budget) in enumerate((heat, budget) for heat in (0.0, 0.8) for budget in BUDGETS)
    for rest in ({"max_tokens": 48, "ignore_eos": True, "thinking_token_budget": budget},)
]
WITHOUT = [one | {"sampling": one["sampling"] | {"thinking_token_budget": None}} for one in ASKED]


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines(REASONS, rounds=[ASKED])


@pytest.mark.parametrize(
    "method",
    ["griffin", *(pytest.param(name, marks=pytest.mark.extended) for name in ("eagle3-tree", "dflash-tree"))],
)
def test_tokens_are_those_of_plain_decoding(engines: Engines, plain: Result, method: str) -> None:
    result = engines(TREES[method] | REASONS, rounds=[ASKED])
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60
    assert len(result["sizes"]) == 1  # no chains


def test_looking_into_all_earlier_rows_is_noticed(engines: Engines, plain: Result) -> None:
    result = engines(TREES["griffin"] | REASONS, rounds=[ASKED], sabotage="count_all_earlier_rows")
    assert len(differing(result, plain)) > 0


def test_budgets_end_what_would_go_on(engines: Engines, plain: Result) -> None:
    """Otherwise the above says nothing."""
    assert len(differing(engines(REASONS, rounds=[WITHOUT]), plain)) > 3
