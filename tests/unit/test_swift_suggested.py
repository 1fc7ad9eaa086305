"""When the search asks for a suggestion, and when it takes one."""

from tests.unit.swift_searches import LAYERS, START, PreparedSuggestions, run, search
from vllm_specext.methods.swift.search.search import MAX_OBSERVATIONS, Kind
from vllm_specext.methods.swift.search.skip_set import SkipSet


def test_a_suggestion_is_used_one_interval_after_it_was_asked_for() -> None:
    suggestion = SkipSet.of(LAYERS, range(9))
    suggester = PreparedSuggestions(suggestion)
    kinds = [proposed.kind for proposed in run(search(suggester, swift_bayes_interval=5), lambda _: 0.5, 21)]
    assert [number for number, kind in enumerate(kinds) if kind is Kind.SUGGESTED] == [10]
    # The start and the candidates before the fifth, then five more, and so on.
    assert [len(asked) for asked in suggester.asked] == [5, 10, 15, 20]
    assert suggester.asked[0][0] == (START, 0.5)
    assert suggester.asked[2][10] == (suggestion, 0.5)


def test_a_suggestion_that_comes_late_is_used_an_interval_later_and_random_search_goes_on() -> None:
    late = PreparedSuggestions(None, SkipSet.of(LAYERS, range(9)))
    kinds = [proposed.kind for proposed in run(search(late, swift_bayes_interval=5), lambda _: 0.5, 21)]
    assert [number for number, kind in enumerate(kinds) if kind is Kind.SUGGESTED] == [15]


def test_a_suggestion_of_the_active_set_is_replaced_by_a_random_candidate() -> None:
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
