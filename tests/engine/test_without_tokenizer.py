"""Engines with ``--skip-tokenizer-init``, which get and give token ids: the tokens of plain decoding."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Result, eagle3, moa, of_method, tree
from tests.engine.p_eagle import p_eagle_tree
from tests.engine.test_dspark import dspark, folder  # noqa: F401 - a fixture
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_lossless import differing
from tests.engine.test_mtp_tree import mimo  # noqa: F401 - a fixture
from tests.engine.test_mtp_tree import trees as mtp
from tests.engine.test_swift import swift
from tests.engine.workload import DFLASH

Engines = Callable[..., Result]

extended = pytest.mark.extended
WITHOUT: dict[str, Any] = {"skip_tokenizer_init": True}
OF_TEXT = {"stop", "bad_words", "structured_outputs"}
ASKED = [
    one | {"sampling": one["sampling"] | {"detokenize": False}} for one in ROUND if not OF_TEXT & one["sampling"].keys()
]


def run(engines: Engines, llm: dict[str, Any], asked: list[dict[str, Any]] = ASKED) -> Result:
    return engines(WITHOUT | llm, rounds=[asked], keep_async=True)


def accepted(result: Result) -> float:
    return float(result["counters"]["vllm:spec_decode_num_accepted_tokens"])


@pytest.mark.parametrize(
    ("llm", "least"),
    [
        (tree(24, 4), 150),
        pytest.param(eagle3(24, 4), 150, marks=extended),
        pytest.param(of_method("dflash-tree", DFLASH, 24, 4), 150, marks=extended),
        pytest.param(moa(24, 4), 150, marks=extended),
        pytest.param(swift(), 30, marks=extended),
    ],
    ids=["griffin", "eagle3", "dflash", "moa", "swift"],
)
def test_drafts_give_the_tokens_of_plain_decoding(engines: Engines, llm: dict[str, Any], least: int) -> None:
    result = run(engines, llm)
    assert differing(result, run(engines, {})) == []
    assert accepted(result) > least


@extended
def test_p_eagle_does(engines: Engines, tmp_path: Path) -> None:
    result = run(engines, p_eagle_tree(tmp_path))
    assert differing(result, run(engines, {})) == []
    assert accepted(result) > 60


@extended
def test_dspark_does(engines: Engines, folder: Path) -> None:  # noqa: F811
    result = run(engines, dspark(folder, 24, 4))
    assert differing(result, run(engines, {})) == []
    assert accepted(result) > 15


@extended
def test_the_targets_own_module_does(engines: Engines, mimo: Path) -> None:  # noqa: F811
    result = run(engines, mtp(mimo))
    assert differing(result, run(engines, {"model": str(mimo)})) == []
    assert result["sizes"]["24"] > 40


def test_predictions_of_tokens_do(engines: Engines) -> None:
    plain = run(engines, {})
    result = run(engines, GIVEN, predicting(ASKED, plain["outputs"]))
    assert differing(result, plain) == []
    assert accepted(result) > 100
