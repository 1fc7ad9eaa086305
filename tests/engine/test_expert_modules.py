"""Trees of the multi-token prediction modules of GLM 4.5, ERNIE 4.5, Hy 3 and K-EXAONE give the tokens of plain
decoding on the real engine.

Targets and modules have random weights, so that few of the modules' own drafts are accepted; requests' predictions are,
and what is drafted is compared with the same module out of transformers' parts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Result, of_method
from tests.engine.expert_targets import FAMILIES, WINDOWS, make_target
from tests.engine.modules import Layout
from tests.engine.test_given import predicting
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.transformers_parts import levels_are_those_of_the_module

Engines = Callable[..., Result]
Target = tuple[Path, Layout]

NODES, TOP_K, LEVELS = 24, 4, 6


def families(*without: str) -> list[Any]:
    names = [name for name in FAMILIES if name not in without]
    return [name if name == "glm" else pytest.param(name, marks=pytest.mark.extended) for name in names]


@pytest.fixture(scope="module", params=families())
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Target:
    folder = tmp_path_factory.mktemp(request.param)
    return folder, make_target(folder, request.param)


def trees(target: Target, nodes: int = NODES, top_k: int = TOP_K, **own: Any) -> dict[str, Any]:
    llm = of_method("mtp-tree", Path(), nodes, top_k, tree_depth=LEVELS, **own)
    del llm["speculative_config"]["model"]
    return llm | {"model": str(target[0])}


@pytest.mark.parametrize(
    ("nodes", "top_k"), [(NODES, TOP_K), pytest.param(LEVELS, 1, marks=pytest.mark.extended)], ids=["tree", "chain"]
)
def test_drafts_give_the_tokens_of_plain_decoding(engines: Engines, target: Target, nodes: int, top_k: int) -> None:
    answers = engines({"model": str(target[0])})["outputs"][: len(ROUND)]
    llm = trees(target, nodes, top_k, prediction_tokens=LEVELS)
    result = engines(llm, rounds=[predicting(ROUND, answers), ROUND], keep_async=True)
    assert differing(result, {"outputs": answers + answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
    assert result["sizes"][str(nodes)] > 60


@pytest.mark.extended
def test_trees_drafted_in_graphs_do(engines: Engines, target: Target) -> None:
    """What CUDA graphs would replay is recorded, padded as they are."""
    answers = engines({"model": str(target[0])})["outputs"][: len(ROUND)]
    result = engines(trees(target), rounds=[ROUND], keep_async=True, graphs=[2, 5, 8])
    assert differing(result, {"outputs": answers}) == []
    assert set(result["replays"]) == {2, 5, 8}


@pytest.mark.extended
def test_a_deliberate_fault_is_noticed(engines: Engines, target: Target) -> None:
    plain = engines({"model": str(target[0])})
    assert is_noticed(engines, plain, trees(target), "accept_the_best_node_of_every_tree")


@pytest.mark.parametrize("target", families(WINDOWS), indirect=True)
def test_every_level_of_every_draft_is_that_of_transformers_parts(
    engines: Engines, target: Target, tmp_path: Path
) -> None:
    """The parts know of no windows."""
    levels_are_those_of_the_module(engines, trees(target), target, tmp_path / "passes.pt")
