"""A target with rotary positions on three axes (M-RoPE), as those that see have: the tokens of plain decoding."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import CHAIN, ROUND, Result, eagle3, moa, of_method, tree
from tests.engine.sounds import hearing
from tests.engine.test_dspark import dspark, folder  # noqa: F401 - a fixture
from tests.engine.test_foreign import foreign
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_lossless import differing
from tests.engine.test_multimodal import ROUNDS, Asked, accepted
from tests.engine.workload import DFLASH, EAGLE3, FOREIGN_BPE, TARGET

Engines = Callable[..., Result]

extended = pytest.mark.extended
TREE = tree(24, 4)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return on(hearing(tmp_path_factory.mktemp("target"), axes=True))


def on(target: Path) -> dict[str, Any]:
    return {"model": str(target), "limit_mm_per_prompt": {"audio": 4}}


def run(engines: Engines, llm: dict[str, Any], rounds: list[Asked] = ROUNDS, **switches: Any) -> Result:
    return engines(llm, rounds=rounds, keep_async=True, **{"sabotage": "place_on_three_axes"} | switches)


@pytest.mark.parametrize(
    ("llm", "least"),
    [
        (TREE, 200),
        pytest.param({"speculative_config": CHAIN}, 100, marks=extended),
        pytest.param(eagle3(24, 4), 200, marks=extended),
        pytest.param(of_method("dflash-tree", DFLASH, 24, 4), 150, marks=extended),
        pytest.param(of_method("draft-model-tree", TARGET, 24, 4), 200, marks=extended),
        pytest.param(moa(24, 4), 150, marks=extended),
        pytest.param(foreign("slem", FOREIGN_BPE), 60, marks=extended),
    ],
    ids=["griffin", "griffin-chain", "eagle3", "dflash", "draft-model", "moa", "slem"],
)
def test_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, target: dict[str, Any], llm: dict[str, Any], least: int
) -> None:
    result = run(engines, llm | target)
    assert differing(result, run(engines, target)) == []
    assert accepted(result) > least


@extended
def test_a_drafter_that_names_axes_drafts_as_one_that_does_not(
    engines: Engines, target: dict[str, Any], tmp_path: Path
) -> None:
    """Its configuration is the target's in this, and its positions count up along all axes alike."""
    config = json.loads((EAGLE3 / "config.json").read_text())
    config["architectures"] = ["Eagle3Qwen3vlForCausalLM"]
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [8, 12, 12]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    shutil.copy(EAGLE3 / "model.safetensors", tmp_path)
    same, result = (run(engines, of_method("eagle3-tree", one, 24, 4) | target) for one in (EAGLE3, tmp_path))
    assert differing(result, run(engines, target)) == []
    assert accepted(result) == pytest.approx(accepted(same), rel=0.02)


@extended
def test_recorded_drafts_and_those_of_a_made_drafter_do(
    engines: Engines,
    target: dict[str, Any],
    folder: Path,  # noqa: F811
) -> None:
    plain = run(engines, target)
    assert differing(run(engines, TREE | target, graphs=[2, 5, 8]), plain) == []
    result = run(engines, dspark(folder, 24, 4) | target)
    assert differing(result, plain) == []
    assert accepted(result) > 10


@extended
def test_predictions_do(engines: Engines, target: dict[str, Any]) -> None:
    plain = run(engines, target, [ROUNDS[0]])
    result = run(engines, GIVEN | target, [predicting(ROUNDS[0], plain["outputs"])])
    assert differing(result, plain) == []
    assert accepted(result) > 150


def test_nodes_that_count_up_on_all_axes_are_noticed(engines: Engines, target: dict[str, Any]) -> None:
    assert differing(run(engines, TREE | target, sabotage="count_up_on_axes"), run(engines, target)) != []


@extended
def test_axes_change_what_is_said(engines: Engines, target: dict[str, Any], tmp_path: Path) -> None:
    """Of sounds, and of nothing else: text has the same position on all axes."""
    flat = run(engines, on(hearing(tmp_path)), sabotage="give_states_of_layers")
    changed = differing(run(engines, target), flat)
    assert len(changed) > 3
    assert all(index % len(ROUND) % 3 for index in changed)
