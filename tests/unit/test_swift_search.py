"""The search: its course under given scores, and when it stops."""

from collections.abc import Callable

import pytest

from tests.unit.swift_searches import LAYERS, START, NoSuggestions, chain, run, search, step
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.swift.search.search import (
    INCUMBENT_INTERVAL,
    SCORINGS,
    TOLERANCE,
    Kind,
    Search,
    SearchOptions,
)
from vllm_specext.methods.swift.search.skip_set import SkipSet


def by_size_of(wanted: SkipSet) -> Callable[[SkipSet], float]:
    """The share of the ``wanted`` variables in a set."""
    return lambda skipped: len(set(skipped.variables) & set(wanted.variables)) / len(wanted) * 0.9


def test_the_active_set_is_scored_before_any_other() -> None:
    searching = search()
    proposed, adopted = step(searching, 0.5)
    assert (proposed.kind, proposed.skipped, adopted) == (Kind.START, START, False)
    assert (searching.best, searching.steps, searching.version) == (0.5, 0, 0)
    assert searching.propose() != proposed


def test_fixed_scores_give_the_published_course_of_adopting_and_restoring() -> None:
    """Where a set scores the same on all contexts, a paired comparison is the published rule: strictly better wins."""
    searching = search()
    scores = [0.3, 0.2, 0.5, 0.5, 0.4, 0.6, 0.59, 0.7]
    best, active, version = 0.0, START, 0
    for number, score in enumerate(scores):
        proposed, adopted = step(searching, score, best)
        assert adopted == (number > 0 and score > best)
        if number == 0 or score > best:
            best = score
        if adopted:
            active, version = proposed.skipped, version + 1
        assert (searching.active, searching.best, searching.version) == (active, best, version)
    assert [entry.adopted for entry in searching.history] == [False, False, True, False, False, True, False, True]
    assert [entry.best for entry in searching.history] == [0.3, 0.3, 0.5, 0.5, 0.5, 0.6, 0.6, 0.7]


def test_a_proposed_set_on_easier_contexts_is_not_adopted_unless_it_beats_the_active_set_there() -> None:
    searching = search()
    step(searching, 0.5)
    proposed = searching.propose()
    assert proposed is not None
    assert searching.needs_incumbent(proposed, 0.8)
    assert not searching.settle(proposed, 0.8, incumbent_score=0.85)
    assert searching.active == START
    # What was learned about the active set moves its estimate.
    assert searching.best is not None
    assert 0.5 < searching.best < 0.85
    _, adopted = step(searching, 0.8, incumbent_score=0.79)
    assert adopted


def test_ties_are_not_adopted() -> None:
    tied = search()
    step(tied, 0.5)
    proposed = tied.propose()
    assert proposed is not None
    assert not tied.needs_incumbent(proposed, 0.5)
    assert not tied.settle(proposed, 0.6, incumbent_score=0.6)


def test_a_proposed_set_whose_contexts_ended_before_the_active_set_was_scored_is_recorded_only() -> None:
    searching = search()
    step(searching, 0.5)
    assert not step(searching, 0.9)[1]
    assert (searching.steps, searching.active, searching.best) == (1, START, 0.5)


def test_the_active_set_is_scored_again_now_and_then_so_that_harder_contexts_do_not_end_the_search() -> None:
    searching = search()
    step(searching, 0.9)
    wanted = []
    for _ in range(3 * (INCUMBENT_INTERVAL + 1)):
        proposed = searching.propose()
        assert proposed is not None
        wanted.append(searching.needs_incumbent(proposed, 0.3))
        searching.settle(proposed, 0.3, 0.4 if wanted[-1] else None)
    assert wanted == ([False] * INCUMBENT_INTERVAL + [True]) * 3
    assert searching.active == START
    assert searching.best is not None
    assert searching.best < 0.7


def test_a_lucky_comparison_does_not_bring_in_a_set_that_scores_below_the_active_ones_average() -> None:
    searching = search()
    step(searching, 0.9)
    for _ in range(INCUMBENT_INTERVAL):
        step(searching, 0.3)
    _, adopted = step(searching, 0.4, incumbent_score=0.3)
    assert not adopted
    assert searching.active == START
    assert searching.best == pytest.approx(0.6)


def score_again(searching: Search, score: float) -> None:
    """Candidates that are no better, until the active set was scored once more."""
    for _ in range(INCUMBENT_INTERVAL + 1):
        step(searching, 0.1, score)


def test_it_stops_once_the_score_of_several_contexts_is_above_the_wanted_one() -> None:
    searching = search(swift_max_score=0.75)
    step(searching, 0.5)
    step(searching, 0.76, 0.5)
    for _ in range(SCORINGS - 1):
        assert not searching.stopped
        score_again(searching, 0.76)
    assert searching.stopped
    assert searching.propose() is None


def test_a_single_lucky_score_does_not_stop_it() -> None:
    searching = search(swift_max_score=0.75)
    step(searching, 0.5)
    step(searching, 0.9, 0.5)
    for _ in range(10):
        score_again(searching, 0.6)
    assert not searching.stopped


def test_a_score_that_is_just_the_wanted_one_does_not_stop_it() -> None:
    searching = search(swift_max_score=0.75)
    step(searching, 0.75)
    for _ in range(10):
        score_again(searching, 0.75)
    assert not searching.stopped


def test_it_ends_soon_where_the_first_set_is_good_enough() -> None:
    searching = search(swift_max_score=0.75)
    step(searching, 0.8)
    for _ in range(SCORINGS - 1):
        score_again(searching, 0.8)
    assert searching.propose() is None
    assert searching.active == START


def test_it_stops_after_more_than_300_fruitless_candidates_in_a_row() -> None:
    searching = search()
    step(searching, 0.5)
    for _ in range(TOLERANCE):
        step(searching, 0.1, 0.5)
    step(searching, 0.6, 0.5)  # the last chance, taken
    assert not searching.stopped
    for _ in range(TOLERANCE):
        step(searching, 0.1, 0.6)
    assert not searching.stopped
    step(searching, 0.1, 0.6)
    assert searching.stopped
    assert searching.steps == 2 * (TOLERANCE + 1)


def test_it_stops_after_the_most_steps() -> None:
    searching = search(swift_max_steps=7)
    assert [proposed.kind for proposed in run(searching, lambda _: 0.5)] == [Kind.START] + [Kind.RANDOM] * 7


def test_no_steps_keep_the_given_set() -> None:
    searching = search(swift_max_steps=0)
    assert searching.propose() is None
    assert not any(searching.note(chain(4 if number < 500 else 0, 5)) for number in range(1000))
    assert searching.active == START


def test_random_candidates_skip_as_many_as_the_ratio_says_and_are_never_the_active_set() -> None:
    searching = search(swift_skip_ratio=0.45)
    drawn = [proposed.skipped for proposed in run(searching, lambda _: 0.5)[1:]]
    assert {len(skipped) for skipped in drawn} == {9}
    assert len(set(drawn)) > 290
    every_variable = {variable for skipped in drawn for variable in skipped.variables}
    assert every_variable == set(range(20))
    # Of four sub-layers one is skipped: the search keeps coming back to the active set if nothing keeps it away.
    tiny = Search(SkipSet.of(4, [0]), SearchOptions(swift_max_steps=50), NoSuggestions())
    assert all(proposed.skipped != SkipSet.of(4, [0]) for proposed in run(tiny, lambda _: 0.5)[1:])


def test_the_same_seed_takes_the_same_course_and_another_seed_does_not() -> None:
    wanted = SkipSet.of(LAYERS, range(9))
    first, second, other = (search(seed=seed, swift_max_steps=80) for seed in (1, 1, 2))
    courses = [run(each, by_size_of(wanted)) for each in (first, second, other)]
    assert courses[0] == courses[1]
    assert list(first.history) == list(second.history)
    assert courses[0] != courses[2]


def test_random_search_finds_a_better_set() -> None:
    wanted = SkipSet.of(LAYERS, range(1, 10))
    searching = search()
    run(searching, by_size_of(wanted))
    assert by_size_of(wanted)(searching.active) > by_size_of(wanted)(START) + 0.2
    assert [entry.best for entry in searching.history] == sorted(entry.best for entry in searching.history)


def test_a_step_that_was_not_finished_is_proposed_again() -> None:
    searching = search()
    first = searching.propose()
    assert searching.propose() is first
    step(searching, 0.5)
    second = searching.propose()
    assert second is not first
    assert searching.propose() is second


def test_a_ratio_that_skips_nothing_is_refused_at_start() -> None:
    with pytest.raises(ConfigurationError, match="swift_skip_ratio"):
        search(swift_skip_ratio=0.01)
