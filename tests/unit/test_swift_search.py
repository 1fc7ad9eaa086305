"""The search: its course under given scores, when it stops, and when it starts anew."""

from collections.abc import Callable, Sequence

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.swift.search.acceptance import AVERAGED_VERIFICATIONS, DraftOutcome
from vllm_specext.methods.swift.search.search import (
    INCUMBENT_INTERVAL,
    MAX_OBSERVATIONS,
    SCORINGS,
    TOLERANCE,
    Kind,
    Observation,
    ProposedSet,
    Search,
    SearchOptions,
)
from vllm_specext.methods.swift.search.skip_set import SkipSet

LAYERS = 12
START = SkipSet.uniform(LAYERS)


class NoSuggestions:
    def ask(self, observations: Sequence[Observation]) -> None: ...

    def ready(self) -> SkipSet | None:
        return None


class PreparedSuggestions(NoSuggestions):
    """The next one is ready as soon as it is asked for, or never."""

    def __init__(self, *suggestions: SkipSet | None) -> None:
        self.asked: list[tuple[Observation, ...]] = []
        self._coming = list(suggestions)
        self._ready: SkipSet | None = None

    def ask(self, observations: Sequence[Observation]) -> None:
        self.asked.append(tuple(observations))
        if self._coming:
            self._ready = self._coming.pop(0)

    def ready(self) -> SkipSet | None:
        ready, self._ready = self._ready, None
        return ready


def search(suggester: NoSuggestions | None = None, seed: int = 0, margin: float = 0.0, **options: float) -> Search:
    return Search(START, SearchOptions(**options), suggester or NoSuggestions(), seed=seed, margin=margin)  # type: ignore[arg-type]


def step(searching: Search, score: float, incumbent_score: float | None = None) -> tuple[ProposedSet, bool]:
    """One step, as the engine takes it. ``incumbent_score`` is what the active set would get on the same contexts."""
    proposed = searching.propose()
    assert proposed is not None
    wanted = searching.needs_incumbent(proposed, score)
    return proposed, searching.settle(proposed, score, incumbent_score if wanted else None)


def run(searching: Search, score_of: Callable[[SkipSet], float], steps: int = 10_000) -> list[ProposedSet]:
    """Until it stops; a set's score is the same on all contexts."""
    seen = []
    while len(seen) < steps and (proposed := searching.propose()) is not None:
        active = searching.active
        score = score_of(proposed.skipped)
        incumbent = score_of(active) if searching.needs_incumbent(proposed, score) else None
        searching.settle(proposed, score, incumbent)
        seen.append(proposed)
    return seen


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


def test_ties_and_what_is_within_the_margin_are_not_adopted() -> None:
    searching = search(margin=0.05)
    step(searching, 0.5)
    proposed = searching.propose()
    assert proposed is not None
    assert not searching.needs_incumbent(proposed, 0.54)
    assert not searching.settle(proposed, 0.6, incumbent_score=0.56)
    proposed = searching.propose()
    assert proposed is not None
    assert searching.settle(proposed, 0.6, incumbent_score=0.54)
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


def test_it_stops_after_more_than_300_fruitless_sets_in_a_row() -> None:
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


def test_random_sets_skip_as_many_as_the_ratio_says_and_are_never_the_active_set() -> None:
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


def test_a_suggestion_is_used_one_interval_after_it_was_asked_for() -> None:
    suggestion = SkipSet.of(LAYERS, range(9))
    suggester = PreparedSuggestions(suggestion)
    kinds = [proposed.kind for proposed in run(search(suggester, swift_bayes_interval=5), lambda _: 0.5, 21)]
    assert [number for number, kind in enumerate(kinds) if kind is Kind.SUGGESTED] == [10]
    # The start and the sets before the fifth, then five more, and so on.
    assert [len(asked) for asked in suggester.asked] == [5, 10, 15, 20]
    assert suggester.asked[0][0] == (START, 0.5)
    assert suggester.asked[2][10] == (suggestion, 0.5)


def test_a_suggestion_that_comes_late_is_used_an_interval_later_and_random_search_goes_on() -> None:
    late = PreparedSuggestions(None, SkipSet.of(LAYERS, range(9)))
    kinds = [proposed.kind for proposed in run(search(late, swift_bayes_interval=5), lambda _: 0.5, 21)]
    assert [number for number, kind in enumerate(kinds) if kind is Kind.SUGGESTED] == [15]


def test_a_suggestion_of_the_active_set_is_replaced_by_a_random_set() -> None:
    kinds = {c.kind for c in run(search(PreparedSuggestions(START), swift_bayes_interval=5), lambda _: 0.5, 21)}
    assert Kind.SUGGESTED not in kinds


def test_no_interval_means_no_suggestions() -> None:
    suggester = PreparedSuggestions(SkipSet.of(LAYERS, range(9)))
    run(search(suggester, swift_bayes_interval=0), lambda _: 0.5, 100)
    assert suggester.asked == []


def test_a_suggestion_looks_at_the_newest_observations_only() -> None:
    suggester = PreparedSuggestions()
    run(search(suggester, swift_bayes_interval=100, swift_max_steps=450), lambda _: 0.5)
    assert len(suggester.asked) == 3
    better = search(suggester, swift_bayes_interval=100)
    scores = iter(number / 2000 for number in range(1200))
    run(better, lambda _: next(scores))
    assert max(len(asked) for asked in suggester.asked) == MAX_OBSERVATIONS


def test_a_step_that_was_not_finished_is_proposed_again() -> None:
    searching = search()
    first = searching.propose()
    assert searching.propose() is first
    step(searching, 0.5)
    second = searching.propose()
    assert second is not first
    assert searching.propose() is second


def chain(right: int, reached: int) -> DraftOutcome:
    return DraftOutcome(accepted=right, depth=reached, right=right, reached=reached)


def tell(searching: Search, accepted: int, times: int) -> list[int]:
    """The verifications, of chains of five tokens, after which the search started anew."""
    return [number for number in range(times) if searching.note(chain(accepted, 5))]


def stopped_search() -> Search:
    searching = search(swift_max_steps=20)
    run(searching, lambda _: 0.5)
    assert searching.stopped
    return searching


def test_acceptance_that_falls_by_more_than_a_tenth_starts_the_search_anew() -> None:
    searching = stopped_search()
    settled = searching.active
    assert tell(searching, 4, 3 * AVERAGED_VERIFICATIONS) == []
    assert len(tell(searching, 3, AVERAGED_VERIFICATIONS)) == 1
    assert (searching.restarts, searching.steps, searching.best) == (1, 0, None)
    assert searching.active == settled
    proposed = searching.propose()
    assert proposed is not None
    assert (proposed.kind, proposed.skipped) == (Kind.START, settled)
    assert proposed.step == len(searching.history)


def test_after_a_restart_old_scores_and_observations_count_nowhere() -> None:
    suggester = PreparedSuggestions()
    searching = search(suggester, swift_max_steps=20, swift_bayes_interval=5)
    run(searching, lambda _: 0.9)
    tell(searching, 4, AVERAGED_VERIFICATIONS)
    tell(searching, 0, AVERAGED_VERIFICATIONS)
    run(searching, lambda _: 0.2)
    assert [len(asked) for asked in suggester.asked] == [5, 10, 15, 20] * 2
    assert searching.best == pytest.approx(0.2)
    assert searching.stopped


def test_acceptance_that_falls_a_little_or_rises_starts_nothing() -> None:
    searching = stopped_search()
    tell(searching, 4, AVERAGED_VERIFICATIONS)
    for number in range(1000):
        assert not searching.note(chain(3 if number % 4 == 0 else 4, 5))
    assert tell(searching, 5, 5 * AVERAGED_VERIFICATIONS) == []


def test_a_few_bad_drafts_start_nothing() -> None:
    searching = stopped_search()
    tell(searching, 4, AVERAGED_VERIFICATIONS)
    assert tell(searching, 0, 5) == []
    assert searching.stopped


def test_alternatives_that_were_accepted_do_not_hide_that_the_chains_went_wrong() -> None:
    searching = stopped_search()
    for right in (4, 2):
        for _ in range(2 * AVERAGED_VERIFICATIONS):
            searching.note(DraftOutcome(accepted=4, depth=5, right=right, reached=5))
    assert searching.restarts == 1


def test_verifications_without_a_draft_say_nothing() -> None:
    searching = stopped_search()
    tell(searching, 4, AVERAGED_VERIFICATIONS)
    assert not any(searching.note(chain(0, 0)) for _ in range(5 * AVERAGED_VERIFICATIONS))
    assert searching.acceptance.rate == pytest.approx(0.8)


def test_acceptance_while_searching_does_not_restart_nor_count_as_what_it_was_afterwards() -> None:
    searching = search(swift_max_steps=20)
    run(searching, lambda _: 0.5, 10)
    assert tell(searching, 5, AVERAGED_VERIFICATIONS) + tell(searching, 1, 3 * AVERAGED_VERIFICATIONS) == []
    run(searching, lambda _: 0.5)
    assert tell(searching, 2, 5 * AVERAGED_VERIFICATIONS) == []
    assert searching.restarts == 0


def test_a_proposed_set_from_before_a_restart_counts_nowhere() -> None:
    searching = stopped_search()
    old = ProposedSet(20, SkipSet.of(LAYERS, range(9)), Kind.RANDOM)
    assert not searching.needs_incumbent(old, 0.9)
    assert not searching.settle(old, 0.9, 0.1)
    assert len(searching.history) == 21


def test_a_ratio_that_skips_nothing_is_refused_at_start() -> None:
    with pytest.raises(ConfigurationError, match="swift_skip_ratio"):
        search(swift_skip_ratio=0.01)
