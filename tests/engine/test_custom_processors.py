"""With a user's own logits processor requests are drafted chains, and get the tokens of plain decoding; trees must
break that."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Result, tree
from tests.engine.test_lossless import differing

Engines = Callable[..., Result]

OWN: dict[str, Any] = {"logits_processors": ["tests.engine.processors:ByTheOneBefore"]}
ASKED = [
    {"ids": one["ids"], "sampling": {"temperature": heat, "seed": place, "max_tokens": 40, "ignore_eos": True}}
    for heat in (0.0, 0.8)
    for place, one in enumerate(ROUND[:6])
]


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines(OWN, rounds=[ASKED])


def test_tokens_are_those_of_plain_decoding(engines: Engines, plain: Result) -> None:
    result = engines(tree(24, 4) | OWN, rounds=[ASKED])
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60
    assert result["learned"]["trees"] == 0  # chains teach nothing


def test_the_processor_changes_what_is_said(engines: Engines, plain: Result) -> None:
    assert len(differing(engines({}, rounds=[ASKED]), plain)) > 3


def test_trees_are_noticed(engines: Engines, plain: Result) -> None:
    result = engines(tree(24, 4) | OWN, rounds=[ASKED], sabotage="overlook_custom_processors")
    assert len(differing(result, plain)) > 0
