"""Drafters without latent attention for a target that has it (MLA): their keys and values lie beside latent vectors,
and trees give the tokens of plain decoding on the real engine.

They have random weights or were trained for another target, so that hardly anything of what they draft is right; the
requests' predictions are, which are verified in the place of a tree. What DFlash drafts is compared with plain torch.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.conftest import ROUND, Engines, of_method
from tests.engine.latent import LLM, make_target
from tests.engine.latent_drafters import READ, WEIGHTS
from tests.engine.latent_drafters import make_drafter as make_eagle3
from tests.engine.p_eagle import MASK, mask_hidden
from tests.engine.pard import pard
from tests.engine.test_block_gemma import D, GemmasDrafter, difference, make_drafter
from tests.engine.test_dflash_drafting import NODES, TOP_K, recorded_drafts
from tests.engine.test_eagle_formats import eagle1
from tests.engine.test_given import predicting
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.workload import GRIFFIN, TARGET

extended = pytest.mark.extended

LEVELS, WIDTH = 6, 256
LAYERS = [0, 1]
"""Whose outputs block drafters read."""


def dflash(folder: Path) -> Path:
    return make_drafter(folder, LAYERS)


def dspark(folder: Path) -> Path:
    tensors, config = load_file(dflash(folder) / WEIGHTS), json.loads((folder / "config.json").read_text())
    heads = {f"markov_head.markov_{name}.weight": 0.4 * torch.randn(config["vocab_size"], 8) for name in ("w1", "w2")}
    save_file(tensors | heads, folder / WEIGHTS)
    section = config.pop("dflash_config")
    section.pop("final_logit_softcapping")
    config |= section | {"architectures": ["Qwen3DSparkModel"], "markov_rank": 8, "markov_head_type": "vanilla"}
    (folder / "config.json").write_text(json.dumps(config | {"sample_from_anchor": False}))
    return folder


def p_eagle(folder: Path) -> Path:
    tensors, config = (
        load_file(make_eagle3(folder, "llama") / WEIGHTS),
        json.loads((folder / "config.json").read_text()),
    )
    save_file(tensors | {"mask_hidden": mask_hidden(len(READ) * D)}, folder / WEIGHTS)
    (folder / "config.json").write_text(json.dumps(config | {"ptd_token_id": MASK}))
    return folder


DRAFTERS = {"dflash-tree": dflash, "dspark-tree": dspark, "peagle-tree": p_eagle}
FOR_ANOTHER: dict[str, Callable[[Path], Path]] = {
    "griffin": lambda folder: GRIFFIN,
    "eagle-tree": eagle1,
    "draft-model-tree": lambda folder: TARGET,
    "pard-tree": pard,
}
"""For the bundled target, which has its ``WIDTH`` and tokenizer."""


@pytest.fixture(scope="module")
def target(engines: Engines) -> Path:
    return engines.made("deepseek", lambda folder: make_target(folder, "deepseek"))


def trees(method: str, folder: Path, target: Path, **own: Any) -> dict[str, Any]:
    return of_method(method, DRAFTERS[method](folder), NODES, TOP_K, **own) | LLM | {"model": str(target)}


@pytest.mark.parametrize("method", ["dflash-tree", *(pytest.param(name, marks=extended) for name in [*DRAFTERS][1:])])
def test_trees_give_the_tokens_of_plain_decoding(engines: Engines, target: Path, method: str, tmp_path: Path) -> None:
    answers = engines(LLM | {"model": str(target)})["outputs"][: len(ROUND)]
    llm = trees(method, tmp_path, target, prediction_tokens=LEVELS)
    result = engines(llm, rounds=[predicting(ROUND, answers), ROUND], keep_async=True)
    assert differing(result, {"outputs": answers + answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
    assert result["sizes"][str(NODES)] > 60
    assert result["cache_groups"] == 1


@extended
@pytest.mark.parametrize("method", FOR_ANOTHER)
def test_those_for_another_target_do(engines: Engines, tmp_path: Path, method: str) -> None:
    (tmp_path / "target").mkdir()
    make_target(tmp_path / "target", "deepseek", hidden_size=WIDTH)
    own = LLM | {"model": str(tmp_path / "target")}
    answers = engines(own)["outputs"][: len(ROUND)]
    drafter = FOR_ANOTHER[method](tmp_path / "drafter")
    llm = of_method(method, drafter, NODES, TOP_K, prediction_tokens=LEVELS) | own
    result = engines(llm, rounds=[predicting(ROUND, answers), ROUND], keep_async=True)
    assert differing(result, {"outputs": answers + answers}) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
    assert result["sizes"][str(NODES)] > 60


@extended
@pytest.mark.parametrize("method", DRAFTERS)
def test_a_deliberate_fault_is_noticed(engines: Engines, target: Path, method: str, tmp_path: Path) -> None:
    plain = engines(LLM | {"model": str(target)})
    llm = trees(method, tmp_path, target)
    assert is_noticed(engines, plain, llm, "accept_the_best_node_of_every_tree")


@extended
def test_every_block_is_that_of_plain_torch(engines: Engines, target: Path, tmp_path: Path) -> None:
    config = trees("dflash-tree", tmp_path, target)
    sequence, passes = recorded_drafts(engines, config, tmp_path / "passes.pt")
    drafter = GemmasDrafter(sequence, target, tmp_path, LAYERS)
    assert len(passes) >= 5
    for one in passes:
        assert difference(drafter, one) < 1e-3
    drafter.states = torch.cat((drafter.states[:, :1], drafter.states[:, :-1]), dim=1)
    assert difference(drafter, passes[2]) > 1e-2
