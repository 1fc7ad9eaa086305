"""Trees of the multi-token prediction modules of hybrid targets give the tokens of plain decoding on the real engine.

The modules have random weights, so that few of their own drafts are accepted; requests' predictions are, and what is
drafted is compared with the same module out of transformers' parts.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from tests.engine.conftest import ROUND, Result, eagle3, of_method
from tests.engine.hybrid import EXPERTS, make_hybrid, one_layer
from tests.engine.modules import OF_QWEN, WEIGHTS, add_module, replace_module
from tests.engine.test_given import predicting
from tests.engine.test_lossless import differing
from tests.engine.test_mtp_tree import another_module
from tests.engine.transformers_parts import levels_are_those_of_the_module
from tests.engine.workload import DFLASH
from vllm_specext.training.mtp.experts import joined

Engines = Callable[..., Result]

NODES, TOP_K, LEVELS = 24, 4, 6


ALL_BUT_EYES: dict[str, Any] = {"limit_mm_per_prompt": {"image": 0, "video": 0}}


KINDS = ["qwen3-next", "qwen3.5"]


@pytest.fixture(scope="module", params=KINDS)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Qwen3-Next's module has experts; Qwen3.5 counts positions on three axes."""
    sees = request.param == "qwen3.5"
    folder, _ = make_hybrid(tmp_path_factory.mktemp("hybrid"), sees=sees)
    add_module(folder, OF_QWEN, one_layer(folder))
    return {"model": str(folder)} | (ALL_BUT_EYES if sees else {})


def trees(target: dict[str, Any], nodes: int = NODES, top_k: int = TOP_K, **own: Any) -> dict[str, Any]:
    llm = of_method("mtp-tree", Path(), nodes, top_k, tree_depth=LEVELS, **own)
    if "model" not in own:
        del llm["speculative_config"]["model"]
    return llm | target


@pytest.mark.parametrize(
    ("nodes", "top_k"), [(NODES, TOP_K), pytest.param(LEVELS, 1, marks=pytest.mark.extended)], ids=["tree", "chain"]
)
@pytest.mark.parametrize(
    "target", [pytest.param(KINDS[0], marks=pytest.mark.extended), KINDS[1]], indirect=True, ids=KINDS
)
def test_drafts_give_the_tokens_of_plain_decoding(
    engines: Engines, target: dict[str, Any], nodes: int, top_k: int
) -> None:
    plain = engines(target | {"enable_prefix_caching": False}, torchvision=True)
    answers = plain["outputs"][: len(ROUND)]
    llm = trees(target, nodes, top_k, prediction_tokens=LEVELS)
    result = engines(llm, rounds=[predicting(ROUND, answers), ROUND], keep_async=True, torchvision=True)
    assert differing(result, {"outputs": answers + answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
    assert result["sizes"][str(nodes)] > 60


@pytest.mark.parametrize(
    "target", [pytest.param(KINDS[0], marks=pytest.mark.extended), KINDS[1]], indirect=True, ids=KINDS
)
def test_every_level_of_every_draft_is_that_of_transformers_parts(
    engines: Engines, target: dict[str, Any], tmp_path: Path
) -> None:
    whole = {"enable_prefix_caching": False}  # otherwise vLLM reads prompts in parts, that end where blocks do
    module = Path(target["model"]), OF_QWEN
    passes = tmp_path / "passes.pt"
    levels_are_those_of_the_module(engines, trees(target) | whole, module, passes, largest=1e-3, torchvision=True)


@pytest.mark.parametrize(
    ("target", "together"),
    [
        pytest.param(KINDS[0], False, marks=pytest.mark.extended),
        pytest.param(KINDS[0], True, marks=pytest.mark.extended),
        (KINDS[1], False),
    ],
    indirect=["target"],
    ids=["qwen3-next", "qwen3-next, experts together", "qwen3.5"],
)
def test_a_module_that_was_trained_further_drafts_in_the_place_of_the_targets_own(
    engines: Engines, target: dict[str, Any], together: bool, tmp_path: Path
) -> None:
    """The target's own has each expert's matrices on their own."""
    alone, whole = another_module(tmp_path / "module", Path(target["model"])), tmp_path / "whole"
    shutil.copytree(target["model"], whole)
    replace_module(whole, OF_QWEN, {name: tensor.float() for name, tensor in load_file(alone / WEIGHTS).items()})
    if together:
        file = alone / WEIGHTS
        save_file(joined(load_file(file), OF_QWEN.layer, EXPERTS["num_experts"]), file)
    llm = trees(target, model=str(alone)) | {"enable_prefix_caching": False}
    passes = tmp_path / "passes.pt"
    levels_are_those_of_the_module(engines, llm, (whole, OF_QWEN), passes, largest=1e-3, torchvision=True)


@pytest.mark.extended
@pytest.mark.parametrize("target", KINDS[1:], indirect=True)
@pytest.mark.parametrize("llm", [eagle3(24, 4), of_method("dflash-tree", DFLASH, 24, 4)], ids=["eagle3", "dflash"])
def test_drafters_over_states_of_layers_draft_for_qwen3_5(
    engines: Engines, target: dict[str, Any], llm: dict[str, Any]
) -> None:
    """They are of another target, and are hardly ever right."""
    plain = engines(target | {"enable_prefix_caching": False}, torchvision=True)
    answers = plain["outputs"][: len(ROUND)]
    own = {"speculative_config": llm["speculative_config"] | {"prediction_tokens": 16}}
    result = engines(own | target, rounds=[predicting(ROUND, answers)], keep_async=True, torchvision=True)
    assert differing(result, {"outputs": answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
