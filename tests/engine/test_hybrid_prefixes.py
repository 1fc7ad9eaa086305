"""Cached prefixes of hybrid targets, whose recurrent states stay where blocks of tokens end, also where an accepted
path passes such an end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import Result
from tests.engine.hybrid import LEVELS, hybrid_tree, make_hybrid
from tests.engine.mamba_hybrid import make_granite
from tests.engine.test_given import PREDICTION
from tests.engine.test_lossless import differing
from tests.engine.workload import GREEDY, requests

Engines = Callable[..., Result]
Asked = list[dict[str, Any]]

BLOCK = 32
KEEP_ALL: dict[str, Any] = {"prefix_cache_retention_interval": BLOCK}
"""By default vLLM keeps the states at the ends of prompts alone."""
HITS = "vllm:prefix_cache_hits"


@pytest.fixture(scope="module", params=[(make_hybrid, 0.05), (make_granite, 0.005)], ids=["qwen", "granite"])
def models(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Answers depend on the recurrent layers so much that their drafter has to be helped by predictions."""
    make, share = request.param
    return make(tmp_path_factory.mktemp("hybrid"), share=share)


@pytest.fixture(scope="module")
def conversations(engines: Engines, models: tuple[Path, Path]) -> tuple[list[Asked], Result]:
    """Prompts, then such as go on a little after the first block of prompt and answer, before the recurrent layers have
    forgotten it; and the answers of plain decoding without a cache of prefixes."""
    plain = {"model": str(models[0]), "enable_prefix_caching": False}
    first = [one["ids"][:20] for one in requests(6)]
    answers = engines(plain, rounds=[[turn(ids) for ids in first]])["outputs"]
    second = [(ids + answer["ids"])[: BLOCK + 2] for ids, answer in zip(first, answers, strict=True)]
    turns = [
        [turn(ids, answer["ids"]) for ids, answer in zip(first, answers, strict=True)],
        [turn(ids) for ids in second],
    ]
    return turns, engines(plain, rounds=turns)


def turn(ids: list[int], predicted: list[int] | None = None) -> dict[str, Any]:
    extra = {"extra_args": {PREDICTION: predicted}} if predicted else {}
    return {"ids": ids, "sampling": GREEDY | {"max_tokens": 80, "ignore_eos": True} | extra}


def drafting(models: tuple[Path, Path], nodes: int = 24, top_k: int = 4) -> dict[str, Any]:
    return hybrid_tree(models, nodes, top_k, prediction_tokens=LEVELS) | KEEP_ALL


@pytest.mark.parametrize(("nodes", "top_k"), [(24, 4), pytest.param(LEVELS, 1, marks=pytest.mark.extended)])
def test_requests_go_on_from_the_answers_of_others(
    engines: Engines, models: tuple[Path, Path], conversations: tuple[list[Asked], Result], nodes: int, top_k: int
) -> None:
    turns, plain = conversations
    result = engines(drafting(models, nodes, top_k), rounds=turns, keep_async=True)
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 300
    assert result["counters"][HITS] == BLOCK * len(turns[1])


def test_states_that_do_not_stay_are_noticed(
    engines: Engines, models: tuple[Path, Path], conversations: tuple[list[Asked], Result]
) -> None:
    turns, plain = conversations
    faulty = engines(drafting(models), rounds=turns, keep_async=True, sabotage="leave_no_states")
    assert differing(faulty, plain) != []


@pytest.mark.extended
def test_plain_decoding_caches_prefixes_on_a_cpu(
    engines: Engines, models: tuple[Path, Path], conversations: tuple[list[Asked], Result]
) -> None:
    turns, plain = conversations
    result = engines({"model": str(models[0])} | KEEP_ALL, rounds=turns)
    assert differing(result, plain) == []
    assert result["counters"][HITS] > 0
