"""Targets whose layers have sliding windows and attention sinks: the tokens of plain decoding on the real engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.mimo import make_mimo
from tests.engine.conftest import CHAIN, ROUND, TIGHT_FOR_TREES, Result, eagle3, of_method, tree
from tests.engine.test_dspark import dspark, folder  # noqa: F401 - a fixture
from tests.engine.test_foreign import foreign
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_mtp_tree import trees as mtp
from tests.engine.windows import WINDOW, gpt_oss, windowed
from tests.engine.workload import DFLASH, FOREIGN_BPE

Engines = Callable[..., Result]
Targets = Callable[[str], Path]

extended = pytest.mark.extended
KINDS: dict[str, dict[str, bool]] = {
    "windows": {},
    "sinks": {"sinks": True},
    "window everywhere": {"every_layer": True},
}


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> Targets:
    made: dict[str, Path] = {}

    def target(kind: str) -> Path:
        if kind not in made:
            made[kind] = windowed(tmp_path_factory.mktemp("target"), **KINDS[kind])
        return made[kind]

    return target


def accepted(result: Result) -> float:
    return float(result["counters"]["vllm:spec_decode_num_accepted_tokens"])


TREE = tree(24, 4)
SMALL = TIGHT_FOR_TREES | {"max_model_len": 352, "num_gpu_blocks_override": 40}
"""As many blocks for three groups of layers, which have half of the layers of a single group."""


@pytest.mark.parametrize(
    ("kind", "llm", "least"),
    [
        ("windows", TREE, 200),
        pytest.param("sinks", TREE, 200, marks=extended),  # gpt-oss below has them, too
        pytest.param("windows", of_method("dflash-tree", DFLASH, 24, 4), 200, marks=extended),
        pytest.param("window everywhere", TREE, 200, marks=extended),
        pytest.param("windows", {"speculative_config": CHAIN}, 150, marks=extended),
        pytest.param("sinks", {"speculative_config": CHAIN}, 150, marks=extended),
        pytest.param("windows", eagle3(24, 4), 200, marks=extended),
        pytest.param("sinks", eagle3(24, 4), 200, marks=extended),
        pytest.param("sinks", of_method("dflash-tree", DFLASH, 24, 4), 200, marks=extended),
        pytest.param("sinks", foreign("slem", FOREIGN_BPE), 60, marks=extended),
        pytest.param("windows", foreign("slem", FOREIGN_BPE), 60, marks=extended),
    ],
)
def test_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, targets: Targets, kind: str, llm: dict[str, Any], least: int
) -> None:
    target = {"model": str(targets(kind))}
    result = engines(llm | target, keep_async=True)
    assert differing(result, engines(target)) == []
    assert accepted(result) > least
    assert result["counters"]["vllm:prefix_cache_hits"] > 0


@extended
@pytest.mark.parametrize("kind", ["windows", "sinks"])
def test_recorded_drafts_do(engines: Engines, targets: Targets, kind: str) -> None:
    target = {"model": str(targets(kind))}
    result = engines(TREE | target, graphs=[2, 5, 8], keep_async=True)
    assert differing(result, engines(target)) == []
    assert accepted(result) > 200


@extended
@pytest.mark.parametrize("kind", ["windows", "sinks"])
def test_drafts_do_where_requests_wait_for_room(engines: Engines, targets: Targets, kind: str) -> None:
    target = {"model": str(targets(kind))}
    result = engines(TREE | SMALL | target, keep_async=True)
    assert differing(result, engines(target)) == []
    assert result["counters"]["vllm:num_preemptions"] > 0


@extended
def test_a_small_model_with_windows_drafts_for_its_like(engines: Engines, targets: Targets) -> None:
    """The target itself, so that nearly all of its greedy drafts are accepted: windows are the same for both."""
    target = {"model": str(targets("windows"))}
    own, other = (
        engines(of_method("draft-model-tree", drafter, 24, 4) | target, keep_async=True)
        for drafter in (targets("windows"), targets("window everywhere"))
    )
    for result in (own, other):
        assert differing(result, engines(target)) == []
    assert accepted(own) > accepted(other) > 200


@extended
def test_such_a_model_drafts_for_a_target_without(engines: Engines, targets: Targets) -> None:
    """Its layers keep whole texts on the target's pages."""
    result = engines(of_method("draft-model-tree", targets("windows"), 24, 4), keep_async=True)
    assert differing(result, engines({})) == []
    assert accepted(result) > 200
    assert result["cache_groups"] == 1


@pytest.fixture(scope="module")
def oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return gpt_oss(tmp_path_factory.mktemp("oss"))


def test_trees_of_gpt_oss_have_the_tokens_of_its_plain_decoding(engines: Engines, oss: Path) -> None:
    """It drafts for itself."""
    target = {"model": str(oss)}
    result = engines(of_method("draft-model-tree", oss, 24, 4) | target, keep_async=True)
    assert differing(result, engines(target)) == []
    assert accepted(result) > 150


@pytest.mark.parametrize("sabotage", ["forget_sinks", pytest.param("forget_windows", marks=extended)])
def test_what_is_forgotten_of_gpt_oss_is_noticed(engines: Engines, oss: Path, sabotage: str) -> None:
    target = {"model": str(oss)}
    assert is_noticed(engines, engines(target), of_method("draft-model-tree", oss, 24, 4) | target, sabotage)


@extended
def test_dspark_does(engines: Engines, targets: Targets, folder: Path) -> None:  # noqa: F811
    target = {"model": str(targets("windows"))}
    result = engines(dspark(folder, 24, 4) | target, keep_async=True)
    assert differing(result, engines(target)) == []
    assert accepted(result) > 20


@extended
def test_a_module_of_a_target_with_windows_does(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> None:
    keys = {"sliding_window": WINDOW, "use_sliding_window": True, "max_window_layers": 0}
    mimo = make_mimo(tmp_path_factory.mktemp("mimo"), **keys)
    target = {"model": str(mimo)}
    result, plain = engines(mtp(mimo), keep_async=True), engines(target)
    assert differing(result, plain) == []
    assert result["sizes"]["24"] > 60
    assert is_noticed(engines, plain, mtp(mimo), "forget_windows")


@extended
@pytest.mark.parametrize("kind", ["windows", "sinks"])
def test_predictions_do(engines: Engines, targets: Targets, kind: str) -> None:
    target = {"model": str(targets(kind))}
    plain = engines(target, rounds=[ROUND])
    result = engines(GIVEN | target, rounds=[predicting(ROUND, plain["outputs"])], keep_async=True)
    assert differing(result, plain) == []
    assert accepted(result) > 150


@pytest.mark.parametrize(
    ("kind", "sabotage"),
    [
        pytest.param("sinks", "forget_sinks", marks=extended),
        ("windows", "forget_windows"),
        pytest.param("sinks", "skip_compaction", marks=extended),
    ],
)
def test_a_deliberate_fault_is_noticed(engines: Engines, targets: Targets, kind: str, sabotage: str) -> None:
    target = {"model": str(targets(kind))}
    assert is_noticed(engines, engines(target), TREE | target, sabotage)


@extended
def test_windows_and_sinks_change_what_is_said(engines: Engines, targets: Targets) -> None:
    """Otherwise the tests above would say nothing of them."""
    stock = engines({})
    said = [engines({"model": str(targets(kind))}) for kind in KINDS]
    assert all(len(differing(one, stock)) > 8 for one in said)
    assert len(differing(said[0], said[1])) > 4
