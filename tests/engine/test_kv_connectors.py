"""Keys and values that a KV connector loads: drafts verified after them give the tokens of plain decoding, and a
drafter beside the target finds its own again.

A second round asks on from the answers of the first, so that what verification wrote is loaded as well.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROOMY, ROUND, TIGHT_FOR_TREES, Engines, Result, cut, eagle3, moa, of_method, tree
from tests.engine.connectors import in_files, offloading
from tests.engine.latent import FAMILIES, LLM, make_target
from tests.engine.p_eagle import p_eagle_tree
from tests.engine.pard import pard_tree
from tests.engine.test_dspark import dspark, folder  # noqa: F401 - a fixture
from tests.engine.test_eagle_formats import eagle1
from tests.engine.test_foreign import foreign
from tests.engine.test_given import GIVEN, predicting
from tests.engine.test_latent import latent_trees
from tests.engine.test_lossless import differing
from tests.engine.windows import windowed
from tests.engine.workload import DFLASH, FOREIGN_BPE, FOREIGN_BYTES, TARGET

ASKED = cut([one for one in ROUND if not {"min_p", "logit_bias"} & one["sampling"].keys()][:10], 64)
"""Without what SLRS refuses."""
LONG = [place for place, one in enumerate(ASKED) if len(one["ids"]) > ROOMY["block_size"]]
"""Longer than a page: the connector of vLLM's examples does not count with shorter prompts."""
extended = pytest.mark.extended
FOUND = "vllm:external_prefix_cache_hits"


def going_on(result: Result) -> list[list[dict[str, Any]]]:
    """``ASKED``, of which ``result`` has the answers, and the same with these and one token more."""
    pairs = zip(ASKED, result["outputs"], strict=True)
    return [ASKED, [{**one, "ids": [*one["ids"], *answer["ids"], 11]} for one, answer in pairs]]


@pytest.fixture(scope="module")
def rounds(engines: Engines) -> list[list[dict[str, Any]]]:
    return going_on(engines({}, rounds=[ASKED]))


@pytest.fixture(scope="module")
def plain(engines: Engines, rounds: list[list[dict[str, Any]]]) -> Result:
    return engines({}, rounds=rounds)


WAYS: dict[str, dict[str, Any]] = {
    "tree": tree(24, 4),
    "tight": tree(24, 4) | TIGHT_FOR_TREES,
    "chain": tree(4, 1),
    "eagle3": eagle3(24, 4),
    "moa": moa(12, 3),
    "dflash": of_method("dflash-tree", DFLASH, 15, 3),
    "language model": of_method("draft-model-tree", TARGET, 12, 3),
    "slem": foreign("slem", FOREIGN_BPE),
    "tli": foreign("tli", FOREIGN_BPE),
    "swift": {"speculative_config": {"method": "swift", "num_speculative_tokens": 6, "adaptive_drafts": False}},
}


STEP_BY_STEP = ("chain", "moa", "tli")
"""Those that are tried without asynchronous scheduling, so that both ways are."""


@pytest.mark.parametrize("way", [way if way in ("tree", "slem") else pytest.param(way, marks=extended) for way in WAYS])
def test_drafts_after_loaded_pages_give_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, rounds: list[list[dict[str, Any]]], way: str
) -> None:
    how = {} if way in STEP_BY_STEP else {"keep_async": True}
    result = engines(offloading() | WAYS[way], rounds=rounds, **how)
    assert differing(result, plain) == []
    assert result["counters"][FOUND] > 300  # with vLLM 0.32 more than 600
    assert (result["counters"]["vllm:num_preemptions"] > 0) == (way == "tight")
    computed = engines(WAYS[way] | {"enable_prefix_caching": False}, rounds=rounds, **how)
    assert rate(result) == pytest.approx(rate(computed), rel=0.05)


def rate(result: Result, place: int = -1) -> float:
    """Accepted tokens a draft in a round."""
    drafts, accepted = result["accepted"][place]
    assert drafts > 50
    return float(accepted / drafts)


@extended
@pytest.mark.parametrize("method", ["eagle-tree", "peagle-tree", "pard-tree", "dspark-tree"])
def test_other_drafters_do(
    engines: Engines,
    plain: Result,
    rounds: list[list[dict[str, Any]]],
    method: str,
    folder: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    llm = {
        "eagle-tree": lambda: of_method("eagle-tree", eagle1(tmp_path / "drafter"), 24, 4),
        "peagle-tree": lambda: p_eagle_tree(tmp_path / "drafter"),
        "pard-tree": lambda: pard_tree(tmp_path / "drafter"),
        "dspark-tree": lambda: dspark(folder, 24, 4),
    }[method]()
    result = engines(offloading() | llm, rounds=rounds, keep_async=True)
    assert differing(result, plain) == []
    assert result["counters"][FOUND] > 600


@extended
def test_drafts_that_are_drawn_do_for_greedy_requests(
    engines: Engines, plain: Result, rounds: list[list[dict[str, Any]]]
) -> None:
    result = engines(offloading() | foreign("slrs", FOREIGN_BYTES), rounds=rounds, keep_async=True)
    asked = [one for requests in rounds for one in requests]
    assert [place for place in differing(result, plain) if asked[place]["sampling"]["temperature"] == 0] == []
    assert result["counters"][FOUND] > 600


@extended
def test_predicted_answers_do(engines: Engines, plain: Result, rounds: list[list[dict[str, Any]]]) -> None:
    answers = plain["outputs"]
    asked = [predicting(one, answers[len(ASKED) * place :][: len(ASKED)]) for place, one in enumerate(rounds)]
    result = engines(offloading() | GIVEN, rounds=asked, keep_async=True)
    assert differing(result, plain) == []
    assert result["counters"][FOUND] > 600


@extended
@pytest.mark.parametrize("kind", ["latent", "windows"])
def test_other_targets_do(engines: Engines, tmp_path: Path, kind: str) -> None:
    if kind == "latent":
        target = engines.made("deepseek", lambda made: make_target(made, "deepseek"))
        base, llm = LLM | {"model": str(target)}, latent_trees((target, FAMILIES["deepseek"][1]))
    else:
        target = windowed(tmp_path)
        base, llm = {"model": str(target)}, tree(24, 4) | {"model": str(target)}
    rounds = going_on(engines(base, rounds=[ASKED]))
    result = engines(offloading() | llm, rounds=rounds, keep_async=True)
    assert differing(result, engines(base, rounds=rounds)) == []
    assert result["counters"][FOUND] > 400


def test_other_numbers_are_noticed(engines: Engines, plain: Result, rounds: list[list[dict[str, Any]]]) -> None:
    faulty = engines(offloading() | tree(24, 4), rounds=rounds, keep_async=True, sabotage="load_other_numbers")
    assert differing(faulty, plain)


def test_a_drafter_that_lost_its_pages_drafts_worse(
    engines: Engines, plain: Result, rounds: list[list[dict[str, Any]]]
) -> None:
    llm = offloading() | WAYS["language model"]
    faulty = engines(llm, rounds=rounds, keep_async=True, sabotage="load_nothing_of_the_drafter")
    assert differing(faulty, plain) == []
    assert rate(faulty) < 0.9 * rate(engines(llm, rounds=rounds, keep_async=True))


@pytest.mark.parametrize("way", ["tree", pytest.param("slem", marks=extended)])
def test_a_connector_that_saves_every_layer_sees_those_of_the_target_and_beside_it(
    engines: Engines, plain: Result, tmp_path: Path, way: str
) -> None:
    asked = [ASKED[place] for place in LONG]
    result = engines(in_files(tmp_path) | WAYS[way], rounds=[asked, asked])
    assert differing(result, {"outputs": [plain["outputs"][place] for place in LONG] * 2}) == []
    assert result["counters"][FOUND] > 200
    assert rate(result) == pytest.approx(rate(result, 0), rel=0.1)
    saved = {file.stem for file in tmp_path.rglob("*.safetensors")}
    assert saved == {f"model.layers.{layer}.self_attn.attn" for layer in range(13 if way == "tree" else 12)}


@extended
def test_a_drafter_with_pages_of_its_own_that_is_seen_is_noticed(engines: Engines, tmp_path: Path) -> None:
    asked = [ASKED[place] for place in LONG]
    engines(in_files(tmp_path) | WAYS["slem"], rounds=[asked], sabotage="show_the_connector_every_pass")
    assert any("draft_model" in file.name for file in tmp_path.rglob("*.safetensors"))
