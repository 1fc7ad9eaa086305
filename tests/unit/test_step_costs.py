"""What steps with drafts are known to take, and what others may."""

import pytest

from vllm_specext.tree.draft_size import NOTHING, DraftSize
from vllm_specext.tree.guessed_costs import guessed_cost
from vllm_specext.tree.step_costs import StepCosts

MANY = 500, 500
"""Steps of a comparison that leaves no doubt."""
LARGE, SHALLOW, SMALL = DraftSize(59, 6), DraftSize(59, 3), DraftSize(15, 6)


def test_one_disturbed_comparison_does_not_turn_what_is_known_and_a_second_one_does() -> None:
    costs, one = StepCosts(slope=0.25), DraftSize(1, 1)
    for now in (10, 20, 30):
        costs.compare(NOTHING, one, 2.4, (12, 12), now)
    costs.compare(one, NOTHING, 2.4, (7, 3), 40)
    assert costs.cost(one) / costs.cost(NOTHING) > 2.3
    assert costs.uncertainty(one, 40) > 0.3
    costs.compare(one, NOTHING, 2.4, (7, 3), 50)
    assert costs.cost(one) / costs.cost(NOTHING) < 1.2


def test_a_comparison_is_seen_in_what_was_asked_before() -> None:
    costs = StepCosts(slope=0.1)
    before = costs.cost(LARGE), costs.cost(SMALL)
    costs.compare(NOTHING, LARGE, 2.0, MANY, 0)
    assert costs.cost(LARGE) == pytest.approx(2.0) != before[0]
    assert costs.cost(SMALL) != before[1]


def test_what_a_level_takes_is_told_by_trees_of_as_many_nodes_else_by_chains() -> None:
    costs = StepCosts(slope=0.5)
    costs.compare(NOTHING, DraftSize(2, 2), 1.2, MANY, 0)
    costs.compare(NOTHING, LARGE, 2.0, MANY, 0)
    assert costs.cost(SHALLOW) == pytest.approx(2.0 - 3 * 0.1)
    assert costs.uncertainty(SHALLOW, 0) < costs.uncertainty(SMALL, 0)
    costs.compare(NOTHING, SHALLOW, 1.85, MANY, 0)
    costs.compare(NOTHING, SMALL, 1.7, MANY, 0)
    assert costs.cost(DraftSize(15, 4)) == pytest.approx(1.7 - 2 * 0.05)


def test_what_lies_between_others_is_guessed_by_its_nodes() -> None:
    """A tree that is no deeper than a chain may take much longer, for its rows."""
    tried = {NOTHING: 1.0, DraftSize(3, 3): 1.1, DraftSize(15, 3): 1.7}
    per_level = 0.1 / 3
    assert guessed_cost(DraftSize(6, 3), tried, 0.5) == pytest.approx(1.1 + 0.6 * 3 / 12)
    assert guessed_cost(DraftSize(4, 4), tried, 0.5) == pytest.approx(1.1 + 0.6 / 12 + per_level)


def test_a_guess_is_between_what_is_smaller_and_what_is_larger_in_all() -> None:
    tried = {NOTHING: 1.0, DraftSize(5, 5): 1.3, LARGE: 1.35}
    for size in (DraftSize(5, 3), DraftSize(15, 3), DraftSize(59, 3), DraftSize(59, 5), DraftSize(31, 6)):
        guess = guessed_cost(size, tried, 3.0)
        assert 1.0 <= guess <= 1.35
        assert not size.holds(DraftSize(5, 5)) or guess >= 1.3


def test_what_was_tried_costs_no_more_than_what_is_larger_and_better_known() -> None:
    costs = StepCosts(slope=0.1)
    costs.compare(NOTHING, DraftSize(4, 4), 3.0, (3, 3), 0)
    assert costs.cost(DraftSize(4, 4)) == pytest.approx(3.0)
    costs.compare(NOTHING, DraftSize(5, 5), 1.7, MANY, 0)
    assert costs.cost(DraftSize(4, 4)) == pytest.approx(1.7)
    costs.compare(NOTHING, DraftSize(3, 3), 1.9, MANY, 0)
    assert costs.cost(DraftSize(5, 5)) == pytest.approx(1.7)
