"""Trees of the multi-token prediction module of a Nemotron-H give the tokens of plain decoding on the real engine.

The module has random weights, so that few of its own drafts are accepted; requests' predictions are, and what is
drafted is compared with the same module out of transformers' parts.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Result
from tests.engine.mamba_hybrid import make_nemotron_with_module
from tests.engine.modules import OF_NEMOTRON
from tests.engine.test_given import predicting
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.test_qwen_modules import LEVELS, NODES, TOP_K, trees
from tests.engine.transformers_parts import levels_are_those_of_the_module

Engines = Callable[..., Result]

WHOLE: dict[str, Any] = {"enable_prefix_caching": False}
"""With a cache of prefixes vLLM reads prompts of hybrid targets in parts, that end where blocks do."""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return {"model": str(make_nemotron_with_module(tmp_path_factory.mktemp("nemotron")))}


@pytest.fixture(scope="module")
def plain(engines: Engines, target: dict[str, Any]) -> Result:
    return engines(target | WHOLE)


@pytest.mark.parametrize(
    ("nodes", "top_k"), [(NODES, TOP_K), pytest.param(LEVELS, 1, marks=pytest.mark.extended)], ids=["tree", "chain"]
)
def test_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, target: dict[str, Any], plain: Result, nodes: int, top_k: int
) -> None:
    answers = plain["outputs"][: len(ROUND)]
    llm = trees(target, nodes, top_k, prediction_tokens=LEVELS)
    result = engines(llm, rounds=[predicting(ROUND, answers), ROUND], keep_async=True, graphs=[2, 5, 8])
    assert differing(result, {"outputs": answers + answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
    assert result["sizes"][str(nodes)] > 60


@pytest.mark.extended
def test_a_deliberate_fault_is_noticed(engines: Engines, target: dict[str, Any], plain: Result) -> None:
    assert is_noticed(engines, plain, trees(target), "accept_the_best_node_of_every_tree")


def test_every_level_of_every_draft_is_that_of_transformers_parts(
    engines: Engines, target: dict[str, Any], tmp_path: Path
) -> None:
    module = Path(target["model"]), OF_NEMOTRON
    levels_are_those_of_the_module(engines, trees(target) | WHOLE, module, tmp_path / "passes.pt")
