"""Draft trees for targets with layers of Mamba-2 give the tokens of plain decoding on the real engine.

Plain decoding is vLLM's own, with its kernels for a CPU, which ``test_plain_tokens_are_those_of_transformers`` holds
against another implementation.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROUND, Result
from tests.engine.mamba_hybrid import make_falcon, make_granite, make_nemotron
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_hybrid import (  # noqa: F401 - its tests run with the fixtures of this file
    answers_begin_as_in_float32,
    fewer,
    test_a_deliberate_fault_in_a_chain_is_noticed,
    test_a_deliberate_fault_is_noticed,
    test_any_sizes_and_depths_give_the_tokens_of_plain_decoding,
    test_chains_do,
    test_trees_give_the_tokens_of_plain_decoding,
    test_where_memory_and_steps_are_tight,
)
from tests.engine.test_lossless import differing
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


@pytest.mark.extended
def test_drafts_in_bfloat16_reach_the_recurrent_layers(engines: Engines, tmp_path: Path) -> None:
    """Where vLLM packs a convolution's weights, it wants channels in multiples of 32."""
    answers_begin_as_in_float32(engines, make_granite(tmp_path, mamba_d_state=32))


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
