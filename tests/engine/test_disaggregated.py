"""Prompts that another engine reads (disaggregated prefill), through vLLM's NIXL connector and over this machine's own
memory: the tokens of plain decoding, and no fewer accepted drafts than without.

NIXL is no part of the tests' installation, for its size: ``pip install nixl``. Without it these tests are skipped.
"""

from typing import Any

import pytest

from tests.engine.conftest import ROOMY, ROUND, TIGHT_FOR_TREES, Engines, Result, cut, eagle3, of_method, tree
from tests.engine.disaggregated import run
from tests.engine.test_foreign import foreign
from tests.engine.test_lossless import differing
from tests.engine.workload import DFLASH, FOREIGN_BPE, GRIFFIN, TARGET

pytestmark = pytest.mark.extended
pytest.importorskip("nixl")

ASKED = cut(ROUND, 48)
LOADED = sum(len(one["ids"]) for one in ASKED if "prompt_logprobs" not in one["sampling"])
LOADING = [place for place, one in enumerate(ASKED) if "prompt_logprobs" not in one["sampling"]]
CHOSEN: dict[str, Any] = {"method": "griffin", "model": str(GRIFFIN), "keep_step_costs": False}
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "tree": ({"speculative_config": CHOSEN}, tree(24, 4)),
    "sizes are chosen": ({"speculative_config": CHOSEN}, {"speculative_config": CHOSEN}),
    "tight": ({"speculative_config": CHOSEN}, tree(24, 4) | TIGHT_FOR_TREES),
    "eagle3": (eagle3(24, 4), eagle3(24, 4)),
    "dflash": (of_method("dflash-tree", DFLASH, 4, 1), of_method("dflash-tree", DFLASH, 15, 3)),
    "language model": (of_method("draft-model-tree", TARGET, 4, 1), of_method("draft-model-tree", TARGET, 12, 3)),
    "slem after plain": ({}, foreign("slem", FOREIGN_BPE)),
    "swift after plain": (
        {},
        {"speculative_config": {"method": "swift", "num_speculative_tokens": 6, "adaptive_drafts": False}},
    ),
}
"""Arguments for the engine that reads prompts and for the other."""


def drafted(result: Result) -> tuple[float, float]:
    return tuple(result["counters"].get(f"vllm:spec_decode_num_{what}", 0) for what in ("drafts", "accepted_tokens"))


@pytest.mark.parametrize("way", WAYS)
def test_an_engine_goes_on_from_prompts_that_another_has_read(engines: Engines, way: str) -> None:
    prefill, decode = WAYS[way]
    result = run(prefill=ROOMY | prefill, decode=ROOMY | decode, requests=ASKED)
    plain = engines({}, rounds=[ASKED])
    assert differing(result, plain) == []
    assert [first[0] for first in result["first"]] == [answer["ids"][0] for answer in plain["outputs"]]
    assert result["counters"]["vllm:external_prefix_cache_hits"] > LOADED / 2
    assert (result["counters"]["vllm:num_preemptions"] > 0) == (way == "tight")
    if "sizes are chosen" not in way and decode:
        whole = engines(decode, rounds=[ASKED], keep_async=True)
        drafts, accepted = drafted(result)
        alone = drafted(whole)
        assert accepted / drafts == pytest.approx(alone[1] / alone[0], rel=0.1)
    if prefill.get("speculative_config") == CHOSEN:
        assert result["drafts"] == 0


def test_an_engine_without_the_drafter_has_nothing_for_one_with_it(engines: Engines) -> None:
    """NIXL says no to each load. Requests end with it, or have their prompts read again."""
    engine_pair = {"prefill": ROOMY, "decode": ROOMY | tree(24, 4)}
    ended = run(**engine_pair, requests=ASKED, policy="fail")
    assert {tuple(answer["ids"]) for place, answer in enumerate(ended["outputs"]) if place in LOADING} == {()}
    result = run(**engine_pair, requests=ASKED, policy="recompute")
    assert differing(result, engines({}, rounds=[ASKED])) == []
    assert drafted(result)[1] > 100
