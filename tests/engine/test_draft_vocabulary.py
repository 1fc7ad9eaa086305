"""Drafters that score an eighth of the target's tokens: the same output as plain decoding, and drafts that are the
target's tokens."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm.platforms import current_platform

from tests.engine.conftest import CHAIN, ROUND, Engines, Result, moa, small, tree
from tests.engine.test_lossless import differing
from tests.engine.test_moa import accepted
from tests.engine.workload import DRAFT_VOCABULARY, GRIFFIN
from vllm_specext.cpu_runner.eager_layers import STOCK, VARIABLE

ASKED = ROUND[:18]
"""Every kind of request once."""
CHAINS = {"speculative_config": CHAIN}
MOA_CHAINS = moa(4, 1, target_layer_inference=1)
WAYS = {"chain": CHAINS, "tree": tree(24, 4), "moa-tree": moa(24, 4), "moa-chain": MOA_CHAINS}


@pytest.fixture(scope="module")
def ask(engines: Callable[..., Result]) -> Callable[..., Result]:
    return lambda llm, **switches: engines(llm, rounds=[ASKED], **switches)


@pytest.fixture(scope="module")
def plain(ask: Callable[..., Result]) -> Result:
    return ask({})


@pytest.mark.parametrize(
    "way", ["tree", *(pytest.param(way, marks=pytest.mark.extended) for way in ("chain", "moa-chain", "moa-tree"))]
)
def test_a_drafter_of_few_tokens_gives_the_tokens_of_plain_decoding(
    ask: Callable[..., Result], plain: Result, way: str
) -> None:
    result = ask(small(WAYS[way]))
    assert differing(result, plain) == []
    assert {token for one in plain["outputs"] for token in one["ids"]} - set(ids_of(256))
    # It drafts less well than one that scores all tokens, but not much.
    assert 0.6 < accepted(result) / accepted(ask(WAYS[way])) < 1


def ids_of(size: int) -> list[int]:
    found: list[int] = json.loads(DRAFT_VOCABULARY.read_text())["ids"]
    return found[:size]


@pytest.mark.parametrize(
    ("way", "sabotage"),
    [
        ("tree", "mask_target_to_the_draft_vocabulary"),
        pytest.param("chain", "mask_target_to_the_draft_vocabulary", marks=pytest.mark.extended),
        pytest.param("chain", "accept_every_draft", marks=pytest.mark.extended),
        pytest.param("tree", "flip_an_ancestor_bit", marks=pytest.mark.extended),
        pytest.param("moa-tree", "mask_target_to_the_draft_vocabulary", marks=pytest.mark.extended),
    ],
)
def test_a_deliberate_fault_is_noticed(ask: Callable[..., Result], plain: Result, way: str, sabotage: str) -> None:
    assert differing(ask(small(WAYS[way]), sabotage=sabotage), plain) != []


@pytest.mark.parametrize("way", ["tree", pytest.param("chain", marks=pytest.mark.extended)])
def test_what_is_drafted_are_the_targets_ids(ask: Callable[..., Result], plain: Result, way: str) -> None:
    """Otherwise the output would be the same, and hardly a draft right."""
    faulty = ask(small(WAYS[way]), sabotage="draft_places_for_tokens")
    assert differing(faulty, plain) == []
    assert accepted(faulty) < 0.3 * accepted(ask(small(WAYS[way])))


@pytest.mark.extended
def test_d2t_in_the_checkpoint_drafts_what_the_file_drafts(
    ask: Callable[..., Result], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("d2t") / "griffin"
    shutil.copytree(GRIFFIN, folder)
    own = torch.tensor(sorted(ids_of(256)))
    offsets = {"d2t": own - torch.arange(len(own)), "t2d": torch.zeros(2048, dtype=torch.bool).index_fill(0, own, True)}
    save_file(load_file(folder / "model.safetensors") | offsets, folder / "model.safetensors")
    result, same = ask({"speculative_config": CHAIN | {"model": str(folder)}}), ask(small(CHAINS))
    assert differing(result, same) == []
    assert result["counters"] == same["counters"]


@pytest.fixture(scope="module")
def vllms_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    """Engines in which vLLM drafts the chains, as on a GPU."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, STOCK)
        yield Engines(tmp_path_factory.mktemp("stock"))


def test_chains_that_vllm_drafts_are_of_the_targets_ids_too(vllms_own: Engines) -> None:
    if not current_platform.is_cpu():
        pytest.skip("the others are such chains")

    def ask(llm: dict[str, Any], **switches: Any) -> Result:
        return vllms_own(llm, rounds=[ASKED], **switches)

    result = ask(small(CHAINS))
    assert differing(result, ask({})) == []
    assert accepted(ask(small(CHAINS), sabotage="draft_places_for_tokens")) < 0.3 * accepted(result)


@pytest.mark.extended
def test_all_tokens_are_drafted_from_as_without_the_keys(ask: Callable[..., Result], tmp_path: Path) -> None:
    file = tmp_path / "ids.json"
    file.write_text(json.dumps({"vocab_size": 2048, "ids": list(range(2047, -1, -1))}))
    whole = ask({"speculative_config": CHAIN | {"draft_vocab_file": str(file)}})
    assert whole["counters"] == ask(CHAINS)["counters"]
