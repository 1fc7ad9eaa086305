"""Draft trees for a target with recurrent layers give the tokens of plain decoding on the real engine.

Plain decoding is vLLM's, with our body in torch for these layers: the one that vLLM has for a CPU takes bfloat16 alone.
``test_plain_tokens_are_those_of_transformers`` holds it against another implementation.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.engine.conftest import ROUND, Result, any_sizes, eagle3, of_method, tree
from tests.engine.hybrid import LEVELS, NODES, hybrid_tree, make_hybrid
from tests.engine.test_foreign import foreign
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.transformers_parts import plain_tokens_are_those_of_transformers
from tests.engine.workload import DFLASH, FOREIGN_BYTES, GREEDY

Engines = Callable[..., Result]

GRAPHS = [2, 5, 8]
TIGHT: dict[str, Any] = {
    "max_num_batched_tokens": 64,
    "num_gpu_blocks_override": 22,
    "enable_prefix_caching": False,  # with such a cache, requests wait instead
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_hybrid(tmp_path_factory.mktemp("hybrid"))


@pytest.fixture(scope="module")
def plain(engines: Engines, models: tuple[Path, Path]) -> Result:
    return engines({"model": str(models[0]), "enable_prefix_caching": False})


def fewer(llm: dict[str, Any], drafted: int) -> dict[str, Any]:
    """As many as a block has tokens are too many where prefixes are cached."""
    return {"speculative_config": llm["speculative_config"] | {"num_speculative_tokens": drafted}}


def predicted(llm: dict[str, Any]) -> dict[str, Any]:
    return {"speculative_config": llm["speculative_config"] | {"prediction_tokens": 16}}


def test_plain_tokens_are_those_of_transformers(engines: Engines, models: tuple[Path, Path]) -> None:
    plain_tokens_are_those_of_transformers(engines, {"model": str(models[0]), "enable_prefix_caching": False})


@pytest.mark.parametrize(
    "how",
    [
        pytest.param({}, id="sync", marks=pytest.mark.extended),
        pytest.param({"keep_async": True}, id="async", marks=pytest.mark.extended),
        pytest.param({"keep_async": True, "graphs": GRAPHS}, id="padded"),
    ],
)
def test_trees_give_the_tokens_of_plain_decoding(
    engines: Engines, models: tuple[Path, Path], plain: Result, how: dict[str, Any]
) -> None:
    """Where there are graphs, the target's batches have rows of no request, as on a GPU."""
    result = engines(hybrid_tree(models), **how)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 150
    assert result["sizes"][str(NODES)] > 60
    assert set(result.get("replays", [])) == set(how.get("graphs", []))


@pytest.mark.extended
def test_drafts_in_bfloat16_reach_the_recurrent_layers(engines: Engines, models: tuple[Path, Path]) -> None:
    """vLLM's own operation cannot read their metadata."""
    answers_begin_as_in_float32(engines, models)


def answers_begin_as_in_float32(engines: Engines, models: tuple[Path, Path]) -> None:
    """Answers in bfloat16 differ from those in float32 somewhere, and rarely at their beginning."""
    torch.manual_seed(1)
    prompts = [torch.randint(4, 2048, (length,)).tolist() for length in (3, 20, 33, 64, 70, 100, 130, 200)]
    asked = [{"ids": ids, "sampling": GREEDY | {"max_tokens": 12, "ignore_eos": True}} for ids in prompts]
    plain = engines({"model": str(models[0]), "enable_prefix_caching": False}, rounds=[asked])
    result = engines(hybrid_tree(models) | {"dtype": "bfloat16"}, rounds=[asked], keep_async=True)
    same = [one["ids"][:6] == other["ids"][:6] for one, other in zip(result["outputs"], plain["outputs"], strict=True)]
    assert sum(same) >= 4


def test_where_memory_and_steps_are_tight(engines: Engines, models: tuple[Path, Path], plain: Result) -> None:
    result = engines(hybrid_tree(models, nodes=8) | TIGHT, keep_async=True)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:num_preemptions"] > 0


@pytest.mark.parametrize(
    "fault",
    [
        "go_on_as_chains",
        pytest.param("stay_behind", marks=pytest.mark.extended),
        pytest.param("convolve_in_order", marks=pytest.mark.extended),
        pytest.param("accept_the_best_node_of_every_tree", marks=pytest.mark.extended),
        pytest.param("skip_compaction", marks=pytest.mark.extended),
    ],
)
def test_a_deliberate_fault_is_noticed(engines: Engines, models: tuple[Path, Path], plain: Result, fault: str) -> None:
    assert is_noticed(engines, plain, hybrid_tree(models), fault)


@pytest.mark.extended
def test_states_of_earlier_requests_are_noticed(engines: Engines, models: tuple[Path, Path], plain: Result) -> None:
    """Our body for prompts on a CPU has to begin with zeros."""
    assert is_noticed(engines, plain, hybrid_tree(models), "keep_old_states")


@pytest.mark.extended
def test_any_sizes_and_depths_give_the_tokens_of_plain_decoding(
    engines: Engines, models: tuple[Path, Path], plain: Result
) -> None:
    result = engines(any_sizes(hybrid_tree(models)), keep_async=True, sabotage="draw_sizes")
    assert differing(result, plain) == []
    assert len([depth for depth, count in result["depths"].items() if count > 10]) >= 2


@pytest.mark.parametrize(
    "llm",
    [
        pytest.param(fewer(GIVEN, 24), id="given"),
        pytest.param(predicted(eagle3(24, 4)), id="eagle3", marks=pytest.mark.extended),
        pytest.param(predicted(tree(24, 4)), id="griffin", marks=pytest.mark.extended),
        pytest.param(predicted(of_method("dflash-tree", DFLASH, 24, 4)), id="dflash", marks=pytest.mark.extended),
    ],
)
def test_other_methods_with_predictions_do(
    engines: Engines, models: tuple[Path, Path], plain: Result, llm: dict[str, Any]
) -> None:
    """Their drafters, where they have some, are of another target, so that their own drafts are hardly ever right."""
    answers = plain["outputs"][: len(ROUND)]
    result = engines(llm | {"model": str(models[0])}, rounds=[predicting(ROUND, answers)], keep_async=True)
    assert differing(result, {"outputs": answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200


@pytest.mark.extended
@pytest.mark.parametrize(
    ("method", "least"),
    [
        ("draft-model-tree", 100),
        ("slem", 50),
        ("tli", 50),
    ],
)
def test_chains_do(engines: Engines, models: tuple[Path, Path], plain: Result, method: str, least: int) -> None:
    """The foreign methods have a drafter whose tokens are the target's, because no other knows what this one says."""
    target, drafter = models
    llm, how = foreign(method, drafter), {}
    if method == "draft-model-tree":
        llm, how = hybrid_tree(models, nodes=LEVELS, top_k=1), {"graphs": GRAPHS}
    result = engines(llm | {"model": str(target)}, keep_async=True, **how)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > least


@pytest.mark.extended
def test_drawn_drafts_do_where_they_are_greedy(engines: Engines, models: tuple[Path, Path], plain: Result) -> None:
    """vLLM's own rule verifies them; with a temperature it may give other tokens of the same distribution."""
    greedy = [index for index, one in enumerate(ROUND) if one["sampling"]["temperature"] == 0]
    asked = [ROUND[index] for index in greedy]
    result = engines(foreign("slrs", FOREIGN_BYTES) | {"model": str(models[0])}, rounds=[asked], keep_async=True)
    assert differing(result, {"outputs": [plain["outputs"][index] for index in greedy]}) == []
    assert result["counters"]["vllm:spec_decode_num_drafts"] > 20


@pytest.mark.extended
def test_a_deliberate_fault_in_a_chain_is_noticed(engines: Engines, models: tuple[Path, Path], plain: Result) -> None:
    assert is_noticed(engines, plain, hybrid_tree(models, nodes=LEVELS, top_k=1), "stay_behind")
