"""A target that hears: prompts of sounds and tokens get the tokens of plain decoding, in batches with prompts of
tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import AGAIN, CHAIN, ROUND, Result, eagle3, moa, of_method, tree
from tests.engine.sounds import hearing
from tests.engine.test_dspark import dspark, folder  # noqa: F401 - a fixture
from tests.engine.test_foreign import foreign
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_lossless import differing
from tests.engine.workload import DFLASH, FOREIGN_BPE, TARGET

Engines = Callable[..., Result]
Asked = list[dict[str, Any]]

extended = pytest.mark.extended
STATES = "give_states_of_layers"
"""For drafters that read them of several layers."""


def heard(asked: Asked, other: int = 0) -> Asked:
    """Two thirds of the requests with one, two or three sounds each."""
    return [
        one | {"sounds": [other + index + count for count in range(1 + index % 4)]} if index % 3 else one
        for index, one in enumerate(asked)
    ]


ROUNDS = [heard(ROUND), heard(AGAIN)]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"model": str(hearing(tmp_path_factory.mktemp("target"))), "limit_mm_per_prompt": {"audio": 4}}


def accepted(result: Result) -> float:
    return float(result["counters"]["vllm:spec_decode_num_accepted_tokens"])


@pytest.mark.parametrize(
    ("llm", "least", "states"),
    [
        (tree(24, 4), 200, None),
        pytest.param({"speculative_config": CHAIN}, 100, None, marks=extended),
        pytest.param(eagle3(24, 4), 200, STATES, marks=extended),
        pytest.param(of_method("dflash-tree", DFLASH, 24, 4), 150, STATES, marks=extended),
        pytest.param(of_method("draft-model-tree", TARGET, 24, 4), 200, None, marks=extended),
        pytest.param(moa(24, 4), 150, None, marks=extended),
        pytest.param(foreign("slem", FOREIGN_BPE), 60, None, marks=extended),
    ],
    ids=["griffin", "griffin-chain", "eagle3", "dflash", "draft-model", "moa", "slem"],
)
def test_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, target: dict[str, Any], llm: dict[str, Any], least: int, states: str | None
) -> None:
    given = {} if states is None else {"sabotage": states}
    result = engines(llm | target, rounds=ROUNDS, keep_async=True, **given)
    assert differing(result, engines(target, rounds=ROUNDS)) == []
    assert accepted(result) > least
    assert result["counters"]["vllm:prefix_cache_hits"] > 0


@extended
def test_dspark_does(engines: Engines, target: dict[str, Any], folder: Path) -> None:  # noqa: F811
    result = engines(dspark(folder, 24, 4) | target, rounds=ROUNDS, keep_async=True, sabotage=STATES)
    assert differing(result, engines(target, rounds=ROUNDS)) == []
    assert accepted(result) > 10


@extended
def test_predictions_do(engines: Engines, target: dict[str, Any]) -> None:
    plain = engines(target, rounds=[ROUNDS[0]])
    result = engines(GIVEN | target, rounds=[predicting(ROUNDS[0], plain["outputs"])], keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > 150


@extended
def test_a_deliberate_fault_is_noticed(engines: Engines, target: dict[str, Any]) -> None:
    faulty = engines(tree(24, 4) | target, rounds=ROUNDS, sabotage="skip_compaction")
    assert differing(faulty, engines(target, rounds=ROUNDS)) != []


@extended
def test_what_is_said_depends_on_the_sounds(engines: Engines, target: dict[str, Any]) -> None:
    """Otherwise the tests above would compare prompts of placeholders."""
    changed = differing(engines(target, rounds=[heard(ROUND, other=100)]), engines(target, rounds=[ROUNDS[0]]))
    assert len(changed) > 6
    assert all(index % 3 for index in changed)
