"""Token equality of SWIFT with plain decoding on the real engine, for every kind of request, while the search changes
the set of skipped sub-layers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROUND, TIGHT_FOR_TREES, Result
from tests.engine.test_lossless import differing, is_noticed
from vllm_specext.methods.swift.search.stored import read_found

Engines = Callable[..., Result]

NODES = 16


def swift(**own: Any) -> dict[str, Any]:
    """Drafts also where that is slower, as it is here."""
    schedule = [[1, 8, NODES]]
    config = {"method": "swift", "num_speculative_tokens": NODES, "num_speculative_tokens_per_batch_size": schedule}
    search = {"swift_context_window": 16, "swift_bayes_interval": 5}
    return {"speculative_config": config | search | own}


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


@pytest.mark.parametrize(
    ("llm", "asynchronous"),
    [({}, False), pytest.param(TIGHT_FOR_TREES, True, marks=pytest.mark.extended)],
    ids=["roomy-sync", "tight-async"],
)
def test_swift_gives_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, tmp_path: Path, llm: dict[str, Any], asynchronous: bool
) -> None:
    result = engines(swift(swift_save=str(tmp_path / "set.json")) | llm, keep_async=asynchronous)
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 130
    assert len(result["sizes"]) >= 5  # drafts end where the drafter is unsure
    if llm:
        assert result["counters"]["vllm:num_preemptions"] >= 3
    found = read_found(tmp_path / "set.json")  # as it was when the engine ended
    assert any(step.adopted for step in found.history)
    # The output of the last step may be on its way to the metrics when an asynchronous engine ends.
    assert len(found.history) - result["counters"]["vllm:specext_swift_search_steps"] in range(1 + asynchronous)


@pytest.mark.extended
def test_passes_in_graphs_are_those_without(engines: Engines, plain: Result, tmp_path: Path) -> None:
    """What CUDA graphs of the sub-layers would replay is recorded; evaluated sets leave out others than drafts do."""
    results, scores = {}, {}
    for graphs in (None, [1, 2, 4, 8]):
        path = tmp_path / f"{graphs}.json"
        result = engines(swift(swift_bayes_interval=0, swift_save=str(path)), graphs=graphs)
        assert differing(result, plain) == []
        scores[graphs is None] = [step.score for step in read_found(path).history]
        results[graphs is None] = result
    assert set(results[False]["replays"]) == {1, 2, 4, 8, "window"}
    steps = min(map(len, scores.values()))
    assert steps > 40
    assert scores[True][:steps] == scores[False][:steps]
    drafted, in_graphs = (results[key]["counters"]["vllm:specext_swift_acceptance"] for key in (True, False))
    assert in_graphs == pytest.approx(drafted, rel=0.02)


@pytest.mark.extended
def test_a_draft_that_skips_nothing_is_always_accepted(engines: Engines, tmp_path: Path) -> None:
    target = {"model": "any", "architecture": "LlamaForCausalLM", "layers": 12, "hidden_size": 256, "vocab_size": 2048}
    nothing = {"skip_ratio": 0.45, "skipped_attention": [], "skipped_mlp": [], "matchness": None, "steps": 0}
    (tmp_path / "set.json").write_text(json.dumps(target | nothing))
    greedily = {"temperature": 0.0, "max_tokens": 48, "ignore_eos": True}
    asked = [[{"ids": request["ids"], "sampling": greedily} for request in ROUND[2:6]]]

    def acceptance(**own: Any) -> float:
        """Accepted tokens per level drafted."""
        return float(engines(swift(**own), rounds=asked)["counters"]["vllm:specext_swift_acceptance"])

    assert acceptance(swift_layers=str(tmp_path / "set.json")) == 1
    assert acceptance(swift_max_steps=0) < 1


def test_a_deliberate_fault_is_noticed(engines: Engines, plain: Result) -> None:
    assert is_noticed(engines, plain, swift(), "skip_compaction")


def test_padding_is_not_accepted_where_the_target_says_its_token(engines: Engines) -> None:
    """Padding holds token 0, and asynchronous scheduling gives it rows; half of the requests say token 0 often."""
    kinds: tuple[dict[str, Any], ...] = ({"temperature": 0.0}, {"temperature": 1.0})
    bias: tuple[dict[str, Any], ...] = ({}, {"logit_bias": {"0": 9.0}})
    asked = [
        {"ids": request["ids"], "sampling": kind | say | {"seed": place, "max_tokens": 32, "ignore_eos": True}}
        for place, request in enumerate(ROUND[:2])
        for kind in kinds
        for say in bias
    ]
    plain = engines({}, rounds=[asked])
    saying = [place for place, output in enumerate(plain["outputs"]) if 0 in output["ids"]]
    assert 2 <= len(saying) < len(asked)
    assert differing(engines(swift(), rounds=[asked], keep_async=True), plain) == []
    wrong = differing(engines(swift(), rounds=[asked], keep_async=True, sabotage="hang_padding_off_the_root"), plain)
    assert wrong
    assert set(wrong) <= set(saying)
