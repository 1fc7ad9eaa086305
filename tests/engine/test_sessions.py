"""Sessions of streaming input have the tokens of plain decoding in every turn, also after drafts that were accepted
beyond the turn's last token."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import CHAIN, ROUND, Result, eagle3, tree
from tests.engine.hybrid import hybrid_tree, make_hybrid
from tests.engine.mamba_hybrid import make_granite
from tests.engine.test_foreign import foreign
from tests.engine.test_lossless import differing
from tests.engine.workload import DRAFTS, FOREIGN_BPE, GREEDY
from vllm_specext.engine.changes.guard import installed_vllm

Engines = Callable[..., Result]
KINDS: tuple[dict[str, Any], ...] = (
    GREEDY,
    {"temperature": 1.0},
    GREEDY | {"repetition_penalty": 1.1},
    {"temperature": 0.7, "top_k": 20, "min_p": 0.05},
)
LENGTHS = (5, 8, 2, 13, 24, 1, 17)
"""Of the turns' outputs, by session and turn, so that many turns end within what a step emits."""
TURNS = 4
TEXTS = [request["ids"] for request in ROUND if len(request["ids"]) >= 33]


def session(index: int) -> dict[str, Any]:
    """Half of them have all their turns from the start; some inputs are shorter than a draft."""
    later = 1 + index % 3 if index % 4 == 3 else DRAFTS + 3
    prompts = [TEXTS[(index + 5 * turn) % len(TEXTS)][: later if turn else 48] for turn in range(TURNS)]
    lengths = [LENGTHS[(index + turn) % len(LENGTHS)] for turn in range(TURNS)]
    own = KINDS[index % len(KINDS)] | {"seed": 100 + index, "ignore_eos": True}
    turns = [{"ids": ids, "sampling": own | {"max_tokens": most}} for ids, most in zip(prompts, lengths, strict=True)]
    return {"turns": turns, "queued": bool(index // len(KINDS) % 2)}


SESSIONS = [session(index) for index in range(16)]


def run(engines: Engines, llm: dict[str, Any], **switches: Any) -> Result:
    return engines(llm, rounds=[], sessions=SESSIONS, **switches)


@pytest.fixture(scope="module")
def plain(engines: Engines) -> Result:
    result = run(engines, {})
    asked = [turn["sampling"]["max_tokens"] for each in SESSIONS for turn in each["turns"]]
    assert [len(turn["ids"]) for turn in result["outputs"]] == asked
    return result


@pytest.mark.parametrize(
    ("llm", "asynchronous"),
    [
        pytest.param({"speculative_config": CHAIN}, False, marks=pytest.mark.extended),
        pytest.param({"speculative_config": CHAIN}, True, marks=pytest.mark.extended),
        pytest.param(tree(24, 4), False, marks=pytest.mark.extended),
        (tree(24, 4), True),
        pytest.param(eagle3(24, 4), True, marks=pytest.mark.extended),
        (foreign("slem", FOREIGN_BPE), False),
    ],
    ids=["chain-sync", "chain-async", "tree-sync", "tree-async", "eagle3-async", "slem"],
)
def test_sessions_have_the_tokens_of_plain_decoding(
    engines: Engines, plain: Result, llm: dict[str, Any], asynchronous: bool
) -> None:
    result = run(engines, llm, keep_async=asynchronous)
    assert result["async"] == asynchronous
    assert differing(result, plain) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 60


@pytest.fixture(scope="module", params=[make_hybrid, make_granite], ids=["gated-delta-rule", "mamba-2"])
def hybrid(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    models: tuple[Path, Path] = request.param(tmp_path_factory.mktemp("hybrid"))
    return models


def of_target(target: Path) -> dict[str, Any]:
    return {"model": str(target), "enable_prefix_caching": False}


@pytest.mark.parametrize("asynchronous", [pytest.param(False, marks=pytest.mark.extended), True])
def test_sessions_of_targets_with_recurrent_layers_do(
    engines: Engines, hybrid: tuple[Path, Path], asynchronous: bool
) -> None:
    """Nothing is drafted for them, because a state has no way back from what was accepted beyond a turn's end."""
    result = run(engines, hybrid_tree(hybrid) | of_target(hybrid[0]), keep_async=asynchronous)
    assert differing(result, run(engines, of_target(hybrid[0]))) == []
    assert result["counters"].get("vllm:spec_decode_num_draft_tokens", 0) == 0


@pytest.mark.extended
def test_drafts_for_them_are_noticed(engines: Engines, hybrid: tuple[Path, Path]) -> None:
    faulty = run(engines, hybrid_tree(hybrid) | of_target(hybrid[0]), sabotage="draft_for_sessions_with_states")
    assert differing(faulty, run(engines, of_target(hybrid[0]))) != []


@pytest.mark.skipif(
    not str(installed_vllm()).startswith("0.32."), reason="newer versions of vLLM do not go on after what was cut off"
)
def test_going_on_after_what_was_cut_off_is_noticed(engines: Engines) -> None:
    """As vLLM 0.32 does. It even ends the engine where a turn's input is shorter than what was cut off."""
    asked = {"rounds": [], "sessions": [each for each in SESSIONS if len(each["turns"][1]["ids"]) > DRAFTS]}
    faulty = engines({"speculative_config": CHAIN}, sabotage="go_on_after_what_was_cut_off", **asked)
    assert len(differing(faulty, engines({}, **asked))) > 5
