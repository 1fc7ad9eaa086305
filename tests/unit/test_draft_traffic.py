"""The choice of the number of drafted tokens on a busy server, where only some of the steps decode alone."""

import pytest

from benchmarks.simulated_drafts.drafters import METHODS
from benchmarks.simulated_drafts.machines import GPUS, TARGETS, Machine
from benchmarks.simulated_drafts.traffic import Server
from vllm_specext.tree.draft_size import NOTHING, DraftSize
from vllm_specext.tree.prompt_costs import PromptCosts

H100 = Machine(next(gpu for gpu in GPUS if gpu.name == "H100"), TARGETS[0])
FIXED = 600


@pytest.mark.parametrize(
    ("method", "requests", "answer", "best"),
    [
        ("GRIFFIN chain", 16, 100, DraftSize(3, 3)),
        ("EAGLE-3 tree", 4, 300, DraftSize(31, 6)),
        ("TLI", 64, 300, DraftSize(2, 2)),
        ("SLRS", 16, 100, NOTHING),
    ],
)
def test_it_is_nearly_as_fast_as_the_best_fixed_size(method: str, requests: int, answer: int, best: DraftSize) -> None:
    server = Server(H100, next(each for each in METHODS if each.name == method), requests, answer)
    chosen, alone = server.run(3000, 1000)
    assert 0.5 < alone < 0.97
    fixed, none = server.run(FIXED, 50, best)[0], server.run(FIXED, 50, NOTHING)[0]
    assert chosen > 0.93 * fixed
    assert best == NOTHING or fixed > 1.15 * none


def at_256(method: str) -> float:
    """What is chosen relative to no drafts, where hardly a step decodes alone."""
    server = Server(H100, next(each for each in METHODS if each.name == method), 256, 100)
    chosen, alone = server.run(6000, 1000)
    assert alone < 0.12
    return chosen / server.run(FIXED, 50, NOTHING)[0]


@pytest.mark.parametrize(("method", "least"), [("EAGLE-3 tree", 1.02), ("SLRS", 0.97)])
def test_steps_with_prompts_are_enough(method: str, least: float) -> None:
    assert at_256(method) > least


def test_without_them_drafts_that_lose_are_found_out_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PromptCosts, "note", lambda self, size, requests, prompt, seconds: None if prompt else seconds)
    assert at_256("SLRS") < 0.96


def test_it_loses_nothing_where_no_step_decodes_alone() -> None:
    server = Server(H100, METHODS[0], 256, 30)
    chosen, alone = server.run(1000, 200)
    assert alone < 0.02
    assert chosen == pytest.approx(server.run(FIXED, 50, NOTHING)[0], rel=0.03)
