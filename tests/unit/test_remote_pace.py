"""A client drafts where that is faster, and nowhere else."""

import asyncio
import random

import pytest

from tests.unit.remote_link import GREEDY, PRESETS, Link, ToyDrafter, ToyTarget, answer, plain, run, serve
from vllm_specext.remote.pace import AGAIN, AT_ONCE, PROBE, Pace

LONG = next(ids for ids in ([9, 10, first] for first in range(8, 3000)) if len(plain(ids, GREEDY, 400)) == 400)


def calls(pace: Pace, count: int, tokens: int, plainly: float) -> list[int]:
    """What is asked for, where a tree brings so many ``tokens`` in 0.1 s, and plain decoding so many a second."""
    asked = []
    for _ in range(count):
        asked.append(pace.plain_tokens())
        if asked[-1]:
            pace.took(asked[-1], asked[-1], 0.03 + asked[-1] / plainly, asked[-1] / plainly)
        else:
            pace.took(0, tokens, 0.1, 0.05)
    return asked


def test_both_ways_are_tried_and_the_slower_one_now_and_then_again() -> None:
    pace = Pace()
    asked = calls(pace, 3 * AGAIN, tokens=4, plainly=140)
    assert asked[:3] == [0, PROBE, AT_ONCE]
    assert asked.count(0) == pytest.approx(3, abs=1)
    later = calls(pace, 3 * AGAIN, tokens=8, plainly=30)  # now drafts bring more
    assert later[-AGAIN:].count(0) >= AGAIN - 2
    assert set(later[-AGAIN:]) <= {0, PROBE}


def test_who_always_drafts_never_asks_for_plain_text() -> None:
    assert set(calls(Pace(always_draft=True), 3 * AGAIN, tokens=1, plainly=1000)) == {0}


async def seconds(target: ToyTarget, knows: float, always_draft: bool, preset: str) -> float:
    link = Link(PRESETS[preset], lambda: serve(target))
    clock = asyncio.get_running_loop().time
    begun = clock()
    drafter = ToyDrafter(GREEDY, knows, random.Random(0), seconds=0.015)
    ids, verified, done, _ = await answer(link, drafter, LONG, 400, always_draft=always_draft)
    link.end()
    assert ids == plain(LONG, GREEDY, 400)
    assert all(verified)
    assert done.exact
    return clock() - begun


@pytest.mark.parametrize("preset", ["base", "4g"])
@pytest.mark.parametrize(
    ("token", "knows", "drafting_pays"),
    [(0.007, 0.3, False), (0.007, 0.7, False), (0.05, 0.9, True), (0.03, 1.0, True)],
)
def test_an_answer_takes_little_longer_than_in_the_faster_way(
    preset: str, token: float, knows: float, drafting_pays: bool
) -> None:
    async def main() -> None:
        target = ToyTarget(seconds=1.25 * token, token_seconds=token)
        drafted = await seconds(target, knows, True, preset)
        chosen = await seconds(target, knows, False, preset)
        ways = sum((PRESETS[preset].up, PRESETS[preset].down)) / 1000
        plainly = 400 * token + 400 / AT_ONCE * ways
        assert (drafted < plainly) == drafting_pays
        assert chosen < 1.2 * min(drafted, plainly)

    run(main())
