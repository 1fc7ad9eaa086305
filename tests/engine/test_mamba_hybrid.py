"""Draft trees for targets with layers of Mamba-2 give the tokens of plain decoding on the real engine.

Plain decoding is vLLM's own, with its kernels for a CPU, which ``test_plain_tokens_are_those_of_transformers`` holds
against another implementation.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Result, any_sizes
from tests.engine.hybrid import LEVELS, NODES, hybrid_tree
from tests.engine.mamba_hybrid import make_falcon, make_granite, make_nemotron
from tests.engine.test_foreign import foreign
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_hybrid import GRAPHS, TIGHT, answers_begin_as_in_float32, fewer
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.transformers_parts import plain_tokens_are_those_of_transformers

Engines = Callable[..., Result]

PLAIN: dict[str, Any] = {"enable_prefix_caching": False}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return make_granite(tmp_path_factory.mktemp("granite"))


@pytest.fixture(scope="module")
def plain(engines: Engines, models: tuple[Path, Path]) -> Result:
    return engines({"model": str(models[0])} | PLAIN)


@pytest.mark.parametrize(
    "make", [lambda folder: make_granite(folder)[0], make_nemotron, make_falcon], ids=["granite", "nemotron", "falcon"]
)
def test_plain_tokens_are_those_of_transformers(engines: Engines, make: Callable[[Path], Path], tmp_path: Path) -> None:
    plain_tokens_are_those_of_transformers(engines, {"model": str(make(tmp_path))} | PLAIN)


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
def test_drafts_in_bfloat16_reach_the_recurrent_layers(engines: Engines, tmp_path: Path) -> None:
    """Where vLLM packs a convolution's weights, it wants channels in multiples of 32."""
    answers_begin_as_in_float32(engines, make_granite(tmp_path, mamba_d_state=32))


@pytest.mark.extended
def test_any_sizes_and_depths_give_the_tokens_of_plain_decoding(
    engines: Engines, models: tuple[Path, Path], plain: Result
) -> None:
    result = engines(any_sizes(hybrid_tree(models)), keep_async=True, sabotage="draw_sizes")
    assert differing(result, plain) == []
    assert len([depth for depth, count in result["depths"].items() if count > 10]) >= 2


@pytest.mark.extended
@pytest.mark.parametrize(("method", "least"), [("draft-model-tree", 100), ("slem", 50), ("tli", 50)])
def test_chains_do(engines: Engines, models: tuple[Path, Path], plain: Result, method: str, least: int) -> None:
    target, drafter = models
    llm, how = foreign(method, drafter), {}
    if method == "draft-model-tree":
        llm, how = hybrid_tree(models, nodes=LEVELS, top_k=1), {"graphs": GRAPHS}
    result = engines(llm | {"model": str(target)}, keep_async=True, **how)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > least


@pytest.mark.extended
def test_a_deliberate_fault_in_a_chain_is_noticed(engines: Engines, models: tuple[Path, Path], plain: Result) -> None:
    assert is_noticed(engines, plain, hybrid_tree(models, nodes=LEVELS, top_k=1), "stay_behind")


@pytest.mark.parametrize(
    "make", [make_nemotron, pytest.param(make_falcon, marks=pytest.mark.extended)], ids=["nemotron", "falcon"]
)
def test_other_targets_do_with_predictions(engines: Engines, make: Callable[[Path], Path], tmp_path: Path) -> None:
    """And notice states that go on along other rows."""
    model = {"model": str(make(tmp_path))}
    answers = engines(model | PLAIN)["outputs"][: len(ROUND)]
    llm, rounds = GIVEN | fewer(GIVEN, 24) | model, [predicting(ROUND, answers)]
    result = engines(llm, rounds=rounds, keep_async=True)
    assert differing(result, {"outputs": answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
    faulty = engines(llm, rounds=rounds, keep_async=True, sabotage="stay_behind")
    assert differing(faulty, {"outputs": answers}) != []
