"""Passes that are recorded on a CPU and replayed: the tokens, and the drafts, of an engine that runs every pass."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.engine.conftest import CHAIN, Result, moa, tree
from tests.engine.test_lossless import differing
from vllm_specext.kernels.native.library import library

Engines = Callable[..., Result]
ACCEPTED = "vllm:spec_decode_num_accepted_tokens"

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler, so that nothing is recorded")

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "no drafts": {"speculative_config": CHAIN | {"num_speculative_tokens_per_batch_size": [[1, 8, 0]]}},
    "chain": {"speculative_config": CHAIN},
    "tree": tree(24, 4),
    "moa": moa(24, 4),
}


def ask(engines: Engines, llm: dict[str, Any], **switches: Any) -> Result:
    """As other tests do, so that one engine serves both."""
    return engines(llm, keep_async=True, **switches)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.extended if name in ("chain", "moa") else ()) for name in CONFIGURATIONS],
)
def test_replayed_passes_give_the_tokens_of_those_that_are_run(engines: Engines, name: str) -> None:
    llm = CONFIGURATIONS[name]
    replayed, run = ask(engines, llm), ask(engines, llm, every_pass=True)
    assert differing(replayed, run) == []
    assert replayed["recorded"]["target"] >= 3
    assert run["recorded"] == {"target": 0, "drafts": 0}
    if name != "no drafts":
        assert replayed["recorded"]["drafts"] >= 3
        assert replayed["counters"][ACCEPTED] == pytest.approx(run["counters"][ACCEPTED], rel=0.02)


@pytest.mark.parametrize(
    ("name", "sabotage"), [("no drafts", "keep_the_recorded_result"), ("tree", "replay_on_the_recorded_inputs")]
)
def test_a_deliberate_fault_is_noticed(engines: Engines, name: str, sabotage: str) -> None:
    llm = CONFIGURATIONS[name]
    assert differing(ask(engines, llm, sabotage=sabotage), ask(engines, llm)) != []
