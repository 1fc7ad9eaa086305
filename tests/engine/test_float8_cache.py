"""Keys and values in float8, of the target and of drafters: the tokens of plain decoding with the same cache."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.platforms import current_platform

from tests.engine.assistant import assistant_tree, make_assistant
from tests.engine.conftest import CHAIN, ROUND, TIGHT_FOR_TREES, Result, eagle3, of_method, tree
from tests.engine.float8 import needs_float8_caches, with_scales
from tests.engine.test_architectures import make
from tests.engine.test_dspark import dspark, folder  # noqa: F401 - a fixture
from tests.engine.test_foreign import foreign
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_mtp_tree import mimo  # noqa: F401 - a fixture
from tests.engine.test_mtp_tree import trees as mtp
from tests.engine.windows import windowed
from tests.engine.workload import DFLASH, FOREIGN_BPE, TARGET

Engines = Callable[..., Result]

extended = pytest.mark.extended
FLOAT8: dict[str, Any] = {"kv_cache_dtype": "fp8"}
TREE = tree(24, 4)

pytestmark = [
    needs_float8_caches,
    pytest.mark.skipif(
        not current_platform.is_cpu(), reason="GPUs' backends round the weights of attention to float8, too"
    ),
]


def accepted(result: Result) -> float:
    return float(result["counters"]["vllm:spec_decode_num_accepted_tokens"])


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines(FLOAT8)


@pytest.mark.parametrize(
    ("llm", "least"),
    [
        (TREE, 200),
        pytest.param(TREE | TIGHT_FOR_TREES, 200, marks=extended),
        pytest.param({"speculative_config": CHAIN}, 100, marks=extended),
        pytest.param(eagle3(24, 4), 200, marks=extended),
        pytest.param(of_method("dflash-tree", DFLASH, 24, 4), 150, marks=extended),
        pytest.param(of_method("draft-model-tree", TARGET, 24, 4), 200, marks=extended),
        pytest.param(foreign("slem", FOREIGN_BPE), 60, marks=extended),
    ],
    ids=["griffin", "griffin-tight", "griffin-chain", "eagle3", "dflash", "draft-model", "slem"],
)
def test_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, llm: dict[str, Any], least: int
) -> None:
    result = engines(FLOAT8 | llm, keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > least


@extended
def test_recorded_drafts_do(engines: Engines, plain: Result) -> None:
    result = engines(FLOAT8 | TREE, graphs=[2, 5, 8], keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > 200


@extended
def test_those_of_made_drafters_do(
    engines: Engines,
    plain: Result,
    folder: Path,  # noqa: F811
    mimo: Path,  # noqa: F811
) -> None:
    result = engines(FLOAT8 | dspark(folder, 24, 4), keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > 20
    result = engines(FLOAT8 | mtp(mimo), keep_async=True)
    assert differing(result, engines(FLOAT8 | {"model": str(mimo)})) == []
    assert result["sizes"]["24"] > 60


@extended
def test_those_of_an_assistant_do(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It reads the target's cache."""
    target, assistant = (tmp_path_factory.mktemp(name) for name in ("target", "assistant"))
    models = make("Gemma4", target), make_assistant(assistant)
    result = engines(FLOAT8 | assistant_tree(models), keep_async=True)
    assert differing(result, engines(FLOAT8 | {"model": str(target)})) == []
    assert result["sizes"]["24"] > 60


@extended
def test_predictions_do(engines: Engines) -> None:
    plain = engines(FLOAT8, rounds=[ROUND])
    result = engines(FLOAT8 | GIVEN, rounds=[predicting(ROUND, plain["outputs"])], keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > 150


@extended
def test_trees_beside_windows_and_sinks_do(engines: Engines, tmp_path: Path) -> None:
    target = FLOAT8 | {"model": str(windowed(tmp_path, sinks=True))}
    result = engines(TREE | target, keep_async=True)
    assert differing(result, engines(target)) == []
    assert accepted(result) > 200


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The checkpoint names the type of its cache."""
    return {"model": str(with_scales(tmp_path_factory.mktemp("target")))}


def test_a_checkpoints_scales_are_read(engines: Engines, scaled: dict[str, Any]) -> None:
    result = engines(TREE | scaled, keep_async=True)
    assert differing(result, engines(scaled)) == []
    assert accepted(result) > 200


@pytest.mark.parametrize("sabotage", ["forget_scales", pytest.param("skip_compaction", marks=extended)])
def test_a_deliberate_fault_is_noticed(engines: Engines, scaled: dict[str, Any], sabotage: str) -> None:
    assert is_noticed(engines, engines(scaled), TREE | scaled, sabotage)


@extended
def test_caches_in_float8_change_what_is_said(engines: Engines, plain: Result, scaled: dict[str, Any]) -> None:
    """Otherwise the tests above would say nothing of them."""
    assert len(differing(plain, engines({}))) > 5
    assert len(differing(plain, engines(scaled))) > 5
