"""Drafts for a target with multi-head latent attention (MLA) give the tokens of plain decoding on the real engine.

What is drafted is compared with the same module out of transformers' parts.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Engines, Result, any_sizes
from tests.engine.latent import FAMILIES, LLM, make_target
from tests.engine.modules import Layout
from tests.engine.test_expert_modules import LEVELS, NODES, trees
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_lossless import FEW, differing, is_noticed
from tests.engine.transformers_parts import levels_are_those_of_the_module, plain_tokens_are_those_of_transformers

Target = tuple[Path, Layout]

GRAPHS = [2, 5, 8]
TIGHT: dict[str, Any] = {"num_gpu_blocks_override": 44}


@pytest.fixture(scope="module", params=["deepseek", pytest.param("glm", marks=pytest.mark.extended)])
def target(engines: Engines, request: pytest.FixtureRequest) -> Target:
    return engines.made(request.param, lambda folder: make_target(folder, request.param)), FAMILIES[request.param][1]


@pytest.fixture(scope="module")
def plain(engines: Engines, target: Target) -> Result:
    return engines(LLM | {"model": str(target[0])})


def latent_trees(target: Target, **own: Any) -> dict[str, Any]:
    return trees(target, **own) | LLM


def test_plain_tokens_are_those_of_transformers(engines: Engines, target: Target) -> None:
    plain_tokens_are_those_of_transformers(engines, LLM | {"model": str(target[0])})


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="sync", marks=pytest.mark.extended),
        pytest.param({"keep_async": True}, id="async", marks=pytest.mark.extended),
        pytest.param({"keep_async": True, "graphs": GRAPHS}, id="padded"),
    ],
)
def test_trees_give_the_tokens_of_plain_decoding(
    engines: Engines, target: Target, plain: Result, how: dict[str, Any]
) -> None:
    result = engines(latent_trees(target), **how)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
    assert result["sizes"][str(NODES)] > 60
    assert set(result.get("replays", [])) == set(how.get("graphs", []))


@pytest.mark.extended
def test_chains_of_the_module_do(engines: Engines, target: Target, plain: Result) -> None:
    """As vLLM drafts them. The module's layer is given the metadata of the step that verifies."""
    result = engines(latent_trees(target, nodes=LEVELS, top_k=1), keep_async=True)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 100


@pytest.mark.extended
def test_predictions_before_trees_do(engines: Engines, target: Target, plain: Result) -> None:
    answers = plain["outputs"][: len(ROUND)]
    llm = latent_trees(target, prediction_tokens=LEVELS)
    result = engines(llm, rounds=[predicting(ROUND, answers)], keep_async=True)
    assert differing(result, {"outputs": answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200


@pytest.mark.extended
def test_where_memory_is_tight(engines: Engines, target: Target, plain: Result) -> None:
    result = engines(latent_trees(target, nodes=8) | TIGHT, keep_async=True)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:num_preemptions"] > 0


@pytest.mark.extended
def test_any_sizes_and_depths_give_the_tokens_of_plain_decoding(
    engines: Engines, target: Target, plain: Result
) -> None:
    result = engines(any_sizes(latent_trees(target)), keep_async=True, sabotage="draw_sizes")
    assert differing(result, plain) == []
    assert len([depth for depth, count in result["depths"].items() if count > 10]) >= 2


@pytest.mark.extended
@pytest.mark.parametrize("fault", ["skip_compaction", "accept_the_best_node_of_every_tree"])
def test_a_deliberate_fault_is_noticed(engines: Engines, target: Target, plain: Result, fault: str) -> None:
    assert is_noticed(engines, plain, latent_trees(target), fault)


def test_trees_that_are_read_as_prompts_are_noticed(engines: Engines, target: Target, plain: Result) -> None:
    """vLLM takes the lengths of requests from the host, where they are upper bounds while steps are scheduled ahead."""
    llm = latent_trees(target)
    faulty = engines(llm, rounds=[FEW], keep_async=True, sabotage="read_trees_as_prompts")
    assert differing(faulty, {"outputs": plain["outputs"][: len(FEW)]})


def test_chains_of_any_length_do(engines: Engines, target: Target, plain: Result) -> None:
    """Beside requests that have none, while steps are scheduled ahead."""
    answers = plain["outputs"][: len(ROUND)]
    llm = GIVEN | LLM | {"model": str(target[0])}
    result = engines(llm, rounds=[predicting(ROUND, answers)], keep_async=True)
    assert differing(result, {"outputs": answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 100


@pytest.mark.extended
def test_chains_that_are_read_as_prompts_are_noticed(engines: Engines, target: Target, plain: Result) -> None:
    answers = plain["outputs"][: len(ROUND)]
    llm = GIVEN | LLM | {"model": str(target[0])}
    faulty = engines(llm, rounds=[predicting(ROUND, answers)], keep_async=True, sabotage="read_trees_as_prompts")
    assert differing(faulty, {"outputs": answers})


def test_every_level_of_every_draft_is_that_of_transformers_parts(
    engines: Engines, target: Target, tmp_path: Path
) -> None:
    levels_are_those_of_the_module(engines, latent_trees(target), target, tmp_path / "passes.pt")
