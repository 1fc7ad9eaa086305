"""Requests with structured outputs are drafted trees, along which the scheduler follows their grammars, and get the
tokens of plain decoding; the fault below must break it."""

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Result
from tests.engine.test_lossless import differing
from tests.engine.test_path_text import TREES
from tests.engine.workload import PLAIN_WORDS, RECORD

Engines = Callable[..., Result]

GRAMMAR = """
root ::= line line line
line ::= ("def " | "class ") name "(" (name (", " name)*)? "):" "\\n"
name ::= [a-z_]{1,9}
"""
TAG = {
    "type": "structural_tag",
    "structures": [{"begin": "def ", "schema": RECORD, "end": ":"}],
    "triggers": ["def "],
}
"""Free text, until a word of it begins a record; so vLLM makes calls of tools."""
KINDS: list[dict[str, Any]] = [
    {"structured_outputs": PLAIN_WORDS},
    {"structured_outputs": {"json": RECORD}},
    {"structured_outputs": {"json": RECORD}, "ignore_eos": True},
    {"structured_outputs": {"choice": ["return self", "return None", "yield self", "returned to the sea"]}},
    {"structured_outputs": {"grammar": GRAMMAR}},
    {"structured_outputs": {"regex": r"[a-z ,.\n]{300}"}, "repetition_penalty": 1.2, "logprobs": 2},
    {"structured_outputs": {"json_object": True}},
    {"structured_outputs": {"structural_tag": json.dumps(TAG)}},
    {},
]
TEMPERATURES = [0.0, 0.7, 1.0]
ASKED = [
    {"ids": ROUND[place % len(ROUND)]["ids"], "sampling": {"temperature": heat, "seed": place, "max_tokens": 48} | kind}
    for place, (heat, kind) in enumerate((heat, kind) for heat in TEMPERATURES for kind in KINDS)
]


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({}, rounds=[ASKED])


@pytest.mark.parametrize(
    ("method", "keep_async"),
    [
        ("griffin", True),
        pytest.param("griffin", False, marks=pytest.mark.extended),
        pytest.param("eagle3-tree", True, marks=pytest.mark.extended),
        pytest.param("dflash-tree", False, marks=pytest.mark.extended),
    ],
)
def test_tokens_are_those_of_plain_decoding(engines: Engines, plain: Result, method: str, keep_async: bool) -> None:
    result = engines(TREES[method], rounds=[ASKED], keep_async=keep_async)
    assert differing(result, plain) == []


@pytest.mark.extended
@pytest.mark.parametrize("backend", ["guidance", "outlines"])
def test_with_other_backends_too(engines: Engines, backend: str) -> None:
    own: dict[str, Any] = {"structured_outputs_config": {"backend": backend}}
    kinds = [place for place, one in enumerate(ASKED) if backend == "guidance" or has_regex(one)]
    asked = [ASKED[place] for place in kinds]
    result = engines(TREES["griffin"] | own, rounds=[asked])
    assert differing(result, engines(own, rounds=[asked])) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 30


def has_regex(one: dict[str, Any]) -> bool:
    """What outlines takes of ``KINDS`` with a vocabulary of its own."""
    return bool(one["sampling"].get("structured_outputs", {}).keys() & {"regex", "choice"})


def test_none_of_them_is_drafted_a_chain(engines: Engines) -> None:
    sizes = engines(TREES["griffin"], rounds=[ASKED[: len(KINDS) - 1]])["sizes"]
    assert sizes.keys() == {"24"}
    assert sizes["24"] > 30


def test_following_a_grammar_as_in_chains_is_noticed(engines: Engines, plain: Result) -> None:
    result = engines(TREES["griffin"], rounds=[ASKED], sabotage="follow_grammars_as_in_chains")
    assert len(differing(result, plain)) > 3
