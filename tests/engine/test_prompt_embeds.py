"""Prompts of embeddings, and of tokens and embeddings, get the tokens of plain decoding in the same batches as prompts
of tokens. Methods that read the text draft nothing for them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import AGAIN, CHAIN, ROOMY, ROUND, TIGHT_FOR_TREES, Result, eagle3, moa, of_method, tree
from tests.engine.embeddings import ALL, OWN, SOME
from tests.engine.p_eagle import p_eagle_tree
from tests.engine.pard import pard_tree
from tests.engine.test_dspark import dspark, folder  # noqa: F401 - a fixture
from tests.engine.test_foreign import foreign
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_lossless import differing
from tests.engine.test_mtp_tree import mimo  # noqa: F401 - a fixture
from tests.engine.test_mtp_tree import trees as mtp
from tests.engine.test_swift import swift
from tests.engine.workload import DFLASH, FOREIGN_BPE, GREEDY, TARGET

Engines = Callable[..., Result]
EMBEDS = {"enable_prompt_embeds": True}


def mixed(requests: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A third of the prompts each."""
    kinds = ({}, {"embeds": ALL}, {"embeds": SOME})
    return [request | kinds[index % 3] for index, request in enumerate(requests)]


ROUNDS = [mixed(ROUND), mixed(AGAIN)]


def run(engines: Engines, llm: dict[str, Any], **switches: Any) -> Result:
    return engines(EMBEDS | llm, rounds=ROUNDS, **switches)


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return run(engines, {})


@pytest.mark.parametrize(
    ("llm", "asynchronous", "least"),
    [
        pytest.param(tree(24, 4), True, 200, marks=pytest.mark.extended),
        (tree(24, 4) | TIGHT_FOR_TREES, False, 200),
        pytest.param({"speculative_config": CHAIN}, False, 60, marks=pytest.mark.extended),
        pytest.param(eagle3(24, 4), True, 200, marks=pytest.mark.extended),
        pytest.param(moa(24, 4), True, 200, marks=pytest.mark.extended),
        pytest.param(of_method("dflash-tree", DFLASH, 24, 4), True, 150, marks=pytest.mark.extended),
        pytest.param(of_method("draft-model-tree", TARGET, 24, 4), True, 100, marks=pytest.mark.extended),
        pytest.param(swift(), False, 60, marks=pytest.mark.extended),
    ],
    ids=["griffin", "griffin-tight", "griffin-chain", "eagle3", "moa", "dflash", "draft-model", "swift"],
)
def test_prompts_of_embeddings_have_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, llm: dict[str, Any], asynchronous: bool, least: int
) -> None:
    result = run(engines, llm, keep_async=asynchronous)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > least
    tight = "max_num_batched_tokens" in llm  # what was cached may have been given up
    assert result["counters"]["vllm:prefix_cache_hits"] > 0 or tight
    assert (result["counters"]["vllm:num_preemptions"] > 0) == tight


@pytest.mark.extended
def test_so_have_those_after_which_a_made_drafter_drafts(
    engines: Engines,
    plain: Result,
    folder: Path,  # noqa: F811
    mimo: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    """Little of which is accepted."""
    for made in (dspark(folder, 24, 4), p_eagle_tree(tmp_path / "drafter"), pard_tree(tmp_path / "pard")):
        result = run(engines, made, keep_async=True)
        assert differing(result, plain) == []
        assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 20
    result = run(engines, mtp(mimo), keep_async=True)
    assert differing(result, run(engines, {"model": str(mimo)})) == []
    assert result["sizes"]["24"] > 60


def test_predictions_are_drafted_after_prompts_of_embeddings(engines: Engines, plain: Result) -> None:
    answers = plain["outputs"]
    rounds = [predicting(ROUNDS[0], answers[: len(ROUND)]), predicting(ROUNDS[1], answers[len(ROUND) :])]
    looking = {"speculative_config": GIVEN["speculative_config"] | {"use_prompt": True}}
    result = engines(EMBEDS | looking, rounds=rounds)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 130


def test_where_the_text_is_read_nothing_is_drafted_for_embeddings(engines: Engines, plain: Result) -> None:
    slem = foreign("slem", FOREIGN_BPE)
    result = run(engines, slem)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 30
    # Where one token of a prompt is left to compute, vLLM pads the step with a draft that is none, and counts it.
    short = [request | {"ids": request["ids"][: ROOMY["block_size"]]} for request in ROUNDS[0] if "embeds" in request]
    embedded = [request for request in short if len(request["ids"]) > 1]
    assert engines(EMBEDS | slem, rounds=[embedded], keep_async=True)["counters"]["vllm:spec_decode_num_drafts"] == 0


def test_the_embeddings_are_what_is_read(engines: Engines, plain: Result) -> None:
    """Otherwise the tests above would compare prompts of placeholders."""
    greedy = [{"ids": one["ids"], "sampling": GREEDY | {"max_tokens": 16, "ignore_eos": True}} for one in ROUND[:12]]
    own = [request | {"embeds": OWN} for request in greedy]
    results = engines(EMBEDS, rounds=[ROUND, AGAIN, greedy, own])["outputs"]
    asked = len(ROUND + AGAIN)
    changed = differing({"outputs": results[:asked]}, plain)
    assert len(changed) > 8
    assert all("embeds" in (ROUNDS[0] + ROUNDS[1])[index] for index in changed)
    assert [one["ids"] for one in results[asked : asked + 12]] == [one["ids"] for one in results[asked + 12 :]]
