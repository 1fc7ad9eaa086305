"""Requests with penalties and bad words are drafted trees, whose nodes have the path to them before them, and get the
tokens of plain decoding; the fault below must break it."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Result, eagle3, of_method, tree
from tests.engine.test_lossless import differing
from tests.engine.workload import DFLASH

Engines = Callable[..., Result]

KINDS: list[dict[str, Any]] = [
    {"repetition_penalty": 1.3},
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.4},
    {"repetition_penalty": 1.05, "logprobs": 2},
    {"presence_penalty": -0.3, "frequency_penalty": -0.2},
    {"bad_words": [" the", "self", " a", "return"]},
    {"repetition_penalty": 0.9, "presence_penalty": 0.6, "frequency_penalty": 0.4, "bad_words": [" and", " of the"]},
    {},
]
TEMPERATURES = [0.0, 0.7, 1.0]
ASKED = [
    {"ids": ROUND[place % len(ROUND)]["ids"], "sampling": kind | {"temperature": heat, "seed": place, **rest}}
    for place, (heat, kind) in enumerate((heat, kind) for heat in TEMPERATURES for kind in KINDS)
    for rest in ({"max_tokens": 48, "ignore_eos": True},)
]
TREES = {
    "griffin": tree(24, 4),
    "eagle3-tree": eagle3(59, 10),
    "dflash-tree": of_method("dflash-tree", DFLASH, 24, 4, tree_depth=4),
}


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({}, rounds=[ASKED])


@pytest.mark.parametrize(
    "method",
    ["griffin", *(pytest.param(name, marks=pytest.mark.extended) for name in ("eagle3-tree", "dflash-tree"))],
)
def test_tokens_are_those_of_plain_decoding(engines: Engines, plain: Result, method: str) -> None:
    result = engines(TREES[method], rounds=[ASKED])
    assert differing(result, plain) == []


def test_none_of_them_is_drafted_a_chain(engines: Engines) -> None:
    sizes = engines(TREES["griffin"], rounds=[ASKED[: len(KINDS)]])["sizes"]
    assert sizes.keys() == {"24"}
    assert sizes["24"] > 50


def test_counting_all_earlier_rows_is_noticed(engines: Engines, plain: Result) -> None:
    result = engines(TREES["griffin"], rounds=[ASKED], sabotage="count_all_earlier_rows")
    assert len(differing(result, plain)) > 3
