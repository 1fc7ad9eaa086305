"""When looked-up tokens are worth more than a drafter's draft."""

import numpy as np
import pytest

from vllm_specext.engine.drafting.predictions import Predictions, Text
from vllm_specext.options.base import Predicted
from vllm_specext.tree.lookups import Lookups
from vllm_specext.tree.own_text import OwnText
from vllm_specext.tree.place import Place


def test_more_evidence_is_worth_more_and_a_good_drafter_needs_more_of_it() -> None:
    lookups = Lookups()
    worth = [lookups.expected(evidence, 16) for evidence in (1, 2, 4, 8, 16, 32, 64, 1000)]
    assert worth == sorted(worth)
    assert 0 < worth[0] < 1
    assert lookups.expected(8, 4) < lookups.expected(8, 8) < 8
    weak, strong = Lookups(), Lookups()
    for _ in range(40):
        weak.see_draft(4, 0)
        strong.see_draft(4, 6)
        strong.see_draft(100, 6)
    assert weak.pay(4, 8)
    assert not strong.pay(4, 8)
    assert strong.pay(100, 64)
    assert not Lookups().pay(4, 8)  # a drafter is tried first


@pytest.mark.parametrize(("right", "pays"), [(0, False), (8, True)])
def test_what_came_decides_whatever_was_thought_at_first(right: int, pays: bool) -> None:
    lookups = Lookups()
    looked_up = list(range(8))
    for _ in range(60):
        lookups.see(9, looked_up, [*looked_up[:right], 99])
        lookups.see_draft(9, 3)
    assert lookups.pay(9, 8) is pays
    assert lookups.expected(9, 8) == pytest.approx(right, abs=0.8)


def test_tokens_that_the_step_did_not_reach_say_nothing() -> None:
    """A step that gave two tokens says that two came, and nothing of the third."""
    lookups, other = Lookups(), Lookups()
    lookups.see(9, [1, 2, 3], [1, 2])
    other.see(9, [1, 2, 3], [1, 2, 4])
    assert lookups.expected(9, 3) > other.expected(9, 3)
    before = Lookups()
    before.see(9, [1, 2], [])
    assert before.expected(9, 3) == Lookups().expected(9, 3)


def text(prompt: list[int]) -> Text:
    return Text(OwnText(np.array(prompt), 2), len(prompt), is_looked_up=True)


@pytest.mark.parametrize("accepted", [0, 7])
def test_a_drafter_that_is_right_goes_first_and_both_are_learned_from(accepted: int) -> None:
    predictions = Predictions(Predicted(8, prompt=True), 8)
    lookups = predictions._lookups
    assert lookups is not None
    for _ in range(100):
        lookups.see_draft(2, accepted)
    one = text([1, 2, 3, 1, 2])
    assert predictions._takes(one, one.place.draft(8)) is (accepted == 0)
    assert one.found == (2, [3, 1, 2, 3])
    drafts, worth = list(lookups._drafts), lookups.expected(2, 8)
    one.teach(lookups, [3, 1])
    assert lookups.expected(2, 8) > worth
    assert (lookups._drafts != drafts) is (accepted > 0)
    one.forget_draft()
    drafts, worth = list(lookups._drafts), lookups.expected(2, 8)
    one.teach(lookups, [3, 1])
    assert (lookups._drafts, lookups.expected(2, 8)) == (drafts, worth)


def test_where_nothing_is_found_the_drafter_drafts() -> None:
    predictions = Predictions(Predicted(8, prompt=True), 8)
    one = text([1, 2, 3])
    assert not predictions._takes(one, one.place.draft(8))
    assert (one.found, one.has_draft) == (None, True)


def test_what_a_request_predicts_and_what_nothing_else_drafts_is_always_drafted() -> None:
    own = Text(Place(np.array([4, 5]), 2), 3)
    assert Predictions(Predicted(8, prompt=True), 8)._takes(own, own.place.draft(8))
    alone = Predictions(Predicted(8, prompt=True, has_drafter=False), 8)
    for _ in range(40):
        looked_up = text([1, 2, 3, 1, 2])
        assert alone._takes(looked_up, looked_up.place.draft(8))
