"""Drafting switches itself off where it loses, and on again where it wins."""

import random

from vllm_specext.tree.payoff import BURST, BURSTS, FIRST_WAIT, LONGEST_WAIT, SETTLING, Payoff, Verdict

COMPARISON = BURSTS * (SETTLING + BURST)


def run(payoff: Payoff, requests: int, steps: int, speed: float, seed: int = 0) -> tuple[list[Verdict], list[bool]]:
    """Decode with a machine that is ``speed`` times as fast with drafts; verdicts, and what each step did."""
    noise = random.Random(seed)
    verdicts, drafted = [], []
    for _ in range(steps):
        drafts = payoff.drafts(requests)
        drafted.append(drafts)
        tokens = requests * (noise.choice([1, 2, 3, 4, 5]) if drafts else 1)
        seconds = 3 / speed if drafts else 1.0
        verdict = payoff.note(requests, tokens, seconds * noise.uniform(0.9, 1.1))
        if verdict is not None:
            verdicts.append(verdict)
    return verdicts, drafted


def test_drafting_goes_on_where_it_pays() -> None:
    verdicts, drafted = run(Payoff(), 1, 4000, speed=1.5)
    assert verdicts == []
    assert sum(drafted) > 0.94 * len(drafted)


def test_drafting_ends_where_it_loses() -> None:
    verdicts, drafted = run(Payoff(), 1, 4000, speed=0.7)
    (verdict,) = verdicts
    assert not verdict.drafts
    assert (verdict.first, verdict.last) == (1, 1)
    assert 0.6 < verdict.speed < 0.8
    assert all(drafted[:FIRST_WAIT])
    assert sum(drafted[FIRST_WAIT + COMPARISON :]) < 0.05 * len(drafted)


def test_the_bursts_of_a_comparison_alternate_and_begin_with_the_way_that_is_not_used() -> None:
    for speed, drafts in ((1.5, True), (0.7, False)):
        payoff, length = Payoff(), SETTLING + BURST
        if not drafts:
            run(payoff, 1, FIRST_WAIT + COMPARISON, speed)
        wait = FIRST_WAIT if drafts else 2 * FIRST_WAIT
        _, drafted = run(payoff, 1, wait + COMPARISON, speed)
        assert drafted[:wait] == [drafts] * wait
        assert drafted[wait:] == ([not drafts] * length + [drafts] * length) * (BURSTS // 2)


def test_drafting_begins_again_once_it_pays() -> None:
    payoff = Payoff()
    run(payoff, 1, 400, speed=0.7)
    assert not payoff.drafts(1)
    verdicts, _ = run(payoff, 1, 2000, speed=1.4, seed=1)
    assert [verdict.drafts for verdict in verdicts] == [True]


def test_a_range_of_requests_decides_for_itself() -> None:
    payoff = Payoff()
    for _ in range(400):
        run(payoff, 1, 1, speed=1.5)
        for requests in (4, 7):
            run(payoff, requests, 1, speed=0.5)
    assert payoff.drafts(1)
    assert not any(payoff.drafts(requests) for requests in range(4, 8))
    assert payoff.drafts(3)
    assert payoff.drafts(8)


def test_equally_fast_ways_do_not_take_turns() -> None:
    verdicts, _ = run(Payoff(), 2, 20_000, speed=1.0)
    assert verdicts == []


def test_a_single_long_step_decides_nothing() -> None:
    payoff = Payoff()
    for step in range(FIRST_WAIT + COMPARISON + 1):
        drafts = payoff.drafts(1)
        slow = 1000.0 if step == FIRST_WAIT + 2 * SETTLING + BURST + 5 else 1.0
        payoff.note(1, 2 if drafts else 1, slow)
    assert payoff.drafts(1)


def test_what_the_step_before_has_drafted_does_not_count() -> None:
    """Steps right after a change take a hundred times as long here; the comparison does not see them."""
    payoff, since, last = Payoff(), 0, True
    for _ in range(FIRST_WAIT + COMPARISON + 1):
        drafts = payoff.drafts(1)
        since, last = (0 if drafts != last else since + 1), drafts
        payoff.note(1, 2 if drafts else 1, 100.0 if drafts and since < SETTLING - 1 else 1.0)
    assert payoff.drafts(1)


def test_comparisons_become_rarer() -> None:
    _, drafted = run(Payoff(), 1, 5 * LONGEST_WAIT, speed=1.5)
    begins = [step for step in range(1, len(drafted)) if drafted[step - 1] and not drafted[step]]
    gaps = [later - earlier for earlier, later in zip(begins[::2], begins[2::2], strict=False)]
    assert gaps == sorted(gaps)
    assert max(gaps) == LONGEST_WAIT + COMPARISON
