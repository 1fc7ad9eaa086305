"""Token equality of SWIFT with plain decoding on the real engine, for every kind of request, while the search changes
the set of skipped sub-layers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import ROUND, TIGHT_FOR_TREES, Result
from tests.engine.test_lossless import differing
from tests.engine.workload import GREEDY

Engines = Callable[..., Result]

NODES = 16


def swift(**own: Any) -> dict[str, Any]:
    schedule = [[1, 8, NODES]]
    config = {"method": "swift", "num_speculative_tokens": NODES, "num_speculative_tokens_per_batch_size": schedule}
    return {"speculative_config": config | {"swift_context_window": 16, "swift_bayes_interval": 5} | own}


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    return engines({})


@pytest.mark.parametrize(
    ("llm", "asynchronous"),
    [({}, False), pytest.param(TIGHT_FOR_TREES, True, marks=pytest.mark.extended)],
    ids=["roomy-sync", "tight-async"],
)
def test_swift_gives_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, llm: dict[str, Any], asynchronous: bool
) -> None:
    result = engines(swift() | llm, keep_async=asynchronous)
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 200
    assert len(result["sizes"]) >= 5  # drafts end where the drafter is unsure
    if llm:
        assert result["counters"]["vllm:num_preemptions"] >= 5


@pytest.mark.extended
def test_a_draft_that_skips_nothing_is_accepted_more_often(engines: Engines, tmp_path: Path) -> None:
    target = {"model": "any", "architecture": "LlamaForCausalLM", "layers": 12, "hidden_size": 256, "vocab_size": 2048}
    nothing = {"skip_ratio": 0.45, "skipped_attention": [], "skipped_mlp": [], "matchness": None, "steps": 0}
    (tmp_path / "set.json").write_text(json.dumps(target | nothing))
    asked = [[{"ids": ROUND[2]["ids"], "sampling": GREEDY | {"max_tokens": 48, "ignore_eos": True}}]]

    def accepted(**own: Any) -> float:
        counters = engines(swift(**own), rounds=asked)["counters"]
        return float(counters["vllm:spec_decode_num_accepted_tokens"] / counters["vllm:spec_decode_num_drafts"])

    whole = {"swift_layers": str(tmp_path / "set.json")}
    assert accepted(**whole) > 1.2 * accepted(swift_max_steps=0)


def test_a_deliberate_fault_is_noticed(engines: Engines, plain: Result) -> None:
    assert differing(engines(swift(), sabotage="skip_compaction"), plain) != []
