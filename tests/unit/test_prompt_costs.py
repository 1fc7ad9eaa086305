"""What a prompt takes of a step is told from what decoding takes."""

import random
from collections.abc import Callable, Iterator

import pytest

from vllm_specext.tree.draft_size import NOTHING, DraftSize
from vllm_specext.tree.prompt_costs import NEEDED, PromptCosts

TWO = DraftSize(2, 2)
BASE, TOKEN = 0.010, 1e-5
"""Seconds of a step without prompts, and of a prompt's token."""


def prompts(seed: int = 0) -> Iterator[int]:
    """Half of the steps read one of up to 900 tokens."""
    chooser = random.Random(seed)
    while True:
        yield chooser.choice((0, chooser.randrange(100, 900)))


def rests(
    costs: PromptCosts, steps: int, seconds: Callable[[int, int], float], size: DraftSize = TWO
) -> list[float | None]:
    """What is said of so many steps."""
    return [
        costs.note(size, 16, prompt, seconds(step, prompt))
        for step, prompt in zip(range(steps), prompts(), strict=False)
    ]


def take(step: int, prompt: int) -> float:
    return BASE + TOKEN * prompt


def test_the_rest_of_a_step_is_what_it_takes_without_prompts() -> None:
    found = rests(PromptCosts(), 60, take)
    assert found.count(None) <= 3 * NEEDED
    assert all(rest == pytest.approx(BASE) for rest in found if rest is not None)


def test_steps_that_something_else_holds_up_do_not_count() -> None:
    chooser = random.Random(1)

    def noisy(step: int, prompt: int) -> float:
        return take(step, prompt) * chooser.uniform(0.95, 1.05) * (20 if step % 10 == 9 else 1)

    found = rests(PromptCosts(), 400, noisy)[200:]
    usual = [rest for step, rest in enumerate(found) if rest is not None and step % 10 != 9]
    assert sum(usual) / len(usual) == pytest.approx(BASE, rel=0.06)


def test_drafts_are_not_taken_for_prompts() -> None:
    """Steps that read prompts draft nothing, and the others take twice as long with drafts."""
    costs = PromptCosts()
    for step, prompt in zip(range(200), prompts(), strict=False):
        size = NOTHING if prompt else DraftSize(4, 4)
        costs.note(size, 16, prompt, take(step, prompt) + (BASE if size.nodes else 0))
    assert costs.note(NOTHING, 16, 500, take(0, 500)) in (None, pytest.approx(BASE))


def test_nothing_is_said_before_enough_is_known_and_where_prompts_take_nearly_all() -> None:
    costs = PromptCosts()
    assert costs.note(TWO, 16, 500, take(0, 500)) is None
    assert costs.note(TWO, 16, 0, take(0, 0)) == take(0, 0)
    rests(costs, 60, take)
    assert costs.note(TWO, 16, 500, take(0, 500)) == pytest.approx(BASE)
    assert costs.note(TWO, 16, 50_000, take(0, 50_000)) is None


def test_a_step_whose_duration_says_nothing_is_compared_with_no_other() -> None:
    costs = PromptCosts()
    for step, prompt in zip(range(400), prompts(), strict=False):
        assert costs.note(TWO, 16, prompt, None if step % 2 else take(step, prompt)) in (None, BASE)
    assert not costs.guesses
