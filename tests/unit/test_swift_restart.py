"""A search that has ended starts anew when acceptance falls, and only then."""

import pytest

from tests.unit.swift_searches import LAYERS, PreparedSuggestions, chain, run, search
from vllm_specext.methods.swift.search.acceptance import AVERAGED_VERIFICATIONS, DraftOutcome
from vllm_specext.methods.swift.search.search import Kind, ProposedSet, Search
from vllm_specext.methods.swift.search.skip_set import SkipSet


def tell(searching: Search, accepted: int, times: int) -> list[int]:
    """After which verifications, of five levels each, the search started anew."""
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
