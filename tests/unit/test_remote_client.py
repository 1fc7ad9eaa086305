"""A client and a server over a link that is cut and healed: the text is the target's, whatever happens."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.remote_link import (
    END,
    FORM,
    GREEDY,
    PRESETS,
    Link,
    Preset,
    ToyDrafter,
    ToyTarget,
    answer,
    next_token,
    plain,
    run,
    serve,
    settings,
)
from vllm_specext.remote.answer import Settings
from vllm_specext.remote.client import Client
from vllm_specext.remote.events import Said
from vllm_specext.remote.exchange import LOST_AFTER, RefusedError, Waiting
from vllm_specext.remote.protocol import (
    Sampling,
)

LAN = PRESETS["lan"]
LONG = next(ids for ids in ([9, 10, first] for first in range(8, 99)) if len(plain(ids, GREEDY, 48)) == 48)
"""A prompt whose answer does not end early."""


def mixed(count: int) -> list[tuple[list[int], Sampling, float]]:
    """Prompts, greedy and drawn, and how good the drafter is: perfect, hopeless and between."""
    chooser = random.Random(5)
    return [
        (
            [chooser.randrange(8, 2000) for _ in range(chooser.choice([1, 9, 300]))],
            Sampling(number, temperature=float(number % 2)),
            (1.0, 0.0, 0.7, 0.7)[number % 4],
        )
        for number in range(count)
    ]


async def cutting(link: Link, chooser: random.Random) -> None:
    while True:
        await asyncio.sleep(chooser.uniform(0.1, 1.5))
        link.cut()
        await asyncio.sleep(chooser.uniform(0.05, 1.5))
        link.heal()


async def sessions(preset: Preset, cuts: bool, back_online: str, fault: Callable[..., Any] | None = None) -> list[Any]:
    """Of 40 sessions: the text, plain decoding's, the end, whether each token was verified, prompt and sampling."""
    target = ToyTarget() if fault is None else ToyTarget(fault=fault)
    served = serve(target)
    found = []
    for number, (prompt, sampling, knows) in enumerate(mixed(40)):
        link = Link(preset, lambda: served, seed=number)
        drafter = ToyDrafter(sampling, knows, random.Random(number))
        cutter = asyncio.ensure_future(cutting(link, random.Random(number))) if cuts else None
        ids, verified, done, _ = await answer(link, drafter, prompt, back_online=back_online)
        if cutter is not None:
            cutter.cancel()
        link.end()
        found.append((ids, plain(prompt, sampling, 48), done, verified, prompt, sampling))
        whole = [*prompt, *ids]
        assert drafter.rows == [(float(whole[place]), float(place)) for place in range(len(drafter.rows))]
    return found


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("cuts", [False, True])
def test_forty_sessions_have_the_tokens_of_plain_decoding(preset: str, cuts: bool) -> None:
    """What is said without a server is verified when it is back."""
    found = run(sessions(PRESETS[preset], cuts, "rewrite"))
    for ids, expected, done, *_ in found:
        assert ids == expected
        assert done.exact
        assert done.finish == ("stop" if END in ids else "length")
        assert done.traffic.verified == len(ids)
        assert done.traffic.offline == 0
    assert {done.finish for _, _, done, *_ in found} == {"stop", "length"}


@pytest.mark.parametrize("preset", ["4g", "lan"])
def test_what_is_kept_is_text_for_the_target(preset: str) -> None:
    """Every token that is said to be the target's is what it says after what stands before, kept text included."""
    found = run(sessions(PRESETS[preset], True, "keep"))
    for ids, expected, done, verified, prompt, sampling in found:
        for place, is_verified in enumerate(verified):
            if is_verified:
                assert ids[place] == next_token(prompt + ids[:place], sampling)
        assert done.exact == all(verified)
        assert not done.exact or ids == expected
        assert done.traffic.offline == verified.count(False)
    assert {done.exact for _, _, done, *_ in found} == {True, False}


def test_a_wrong_token_of_a_server_is_noticed() -> None:
    wrong = run(sessions(LAN, False, "keep", fault=lambda tokens: [*tokens[:-1], (tokens[-1] + 1) % 2048]))
    # An answer that is cut off before the wrong token does not show it.
    assert sum(ids != expected for ids, expected, *_ in wrong) > 30


def test_a_client_whose_address_changes_goes_on_in_another_session() -> None:
    """Without keys a server knows users by their addresses, and gives nobody the session of another."""

    async def main() -> None:
        target = ToyTarget()
        served = serve(target)
        link = Link(PRESETS["5g"], lambda: served)

        async def move() -> None:
            await asyncio.sleep(0.4)
            link.cut()
            link.key = "another address"
            link.heal()

        moving = asyncio.ensure_future(move())
        drafter = ToyDrafter(GREEDY, 0.7, random.Random(0))
        ids, _, done, _ = await answer(link, drafter, LONG, offline_limit=0)
        await moving
        link.end()
        assert ids == plain(LONG, GREEDY, 48)
        assert done.exact
        assert len(link.conversations) == 2
        assert done.traffic.bytes_up < 20_000  # it does not ask for the old session again and again

    run(main())


def test_a_server_that_begins_anew_is_told_the_text_again() -> None:
    async def main() -> None:
        servers = [serve(ToyTarget())]
        link = Link(PRESETS["5g"], lambda: servers[-1])
        drafter = ToyDrafter(GREEDY, 0.7, random.Random(0))

        async def restart() -> None:
            for _ in range(3):
                await asyncio.sleep(0.25)
                servers.append(serve(ToyTarget()))
                link.cut()
                link.heal()

        restarting = asyncio.ensure_future(restart())
        ids, _, done, _ = await answer(link, drafter, LONG, offline_limit=0)
        restarting.cancel()
        link.end()
        assert ids == plain(LONG, GREEDY, 48)
        assert done.exact
        assert sum(server.verifier.asked > 0 for server in servers) > 1  # type: ignore[attr-defined]

    run(main())


@pytest.mark.parametrize("preset", PRESETS)
def test_a_client_goes_on_alone_soon_after_a_cut(preset: str) -> None:
    async def main() -> None:
        served = serve(ToyTarget())
        link = Link(PRESETS[preset], lambda: served)
        drafter = ToyDrafter(GREEDY, 0.5, random.Random(0))
        client = Client(link.connect, drafter, settings(patience=0.0), random.Random(0))
        clock = asyncio.get_running_loop().time
        cut = 0.0
        async for event in client.answer([9, 10], GREEDY, 400):
            if isinstance(event, Said) and event.verified and not cut and client.waiting.way is not None:
                await asyncio.sleep(0.001)
                cut, within = clock(), 1.1 * client.waiting.seconds
                link.cut()
            elif isinstance(event, Said) and not event.verified:
                assert clock() - cut <= within + drafter.seconds * 2 + 0.05
                break
        else:
            raise AssertionError("it said nothing alone")
        link.end()

    run(main())


def test_a_client_that_may_not_go_on_alone_waits_or_ends() -> None:
    async def main() -> None:
        served = serve(ToyTarget())
        link = Link(LAN, lambda: served)
        link.cut()
        drafter = ToyDrafter(GREEDY, 0.5, random.Random(0))
        ids, _, done, _ = await answer(link, drafter, [9], offline_limit=3, patience=20.0)
        assert (len(ids), done.finish, done.exact) == (3, "offline", False)
        assert asyncio.get_running_loop().time() == pytest.approx(20, abs=0.2)

        async def heal() -> None:
            await asyncio.sleep(60)
            link.heal()

        healing = asyncio.ensure_future(heal())
        ids, _, done, _ = await answer(link, drafter, [9], offline_limit=0)
        await healing
        link.end()
        assert ids == plain([9], GREEDY, 48)
        assert done.exact

    run(main())


def test_a_loop_is_not_said_for_long() -> None:
    class Loops(ToyDrafter):
        async def say(self, text: list[int], sampling: Sampling) -> int:
            await asyncio.sleep(self.seconds)
            return 100 + len(text) % 4

    async def main() -> None:
        link = Link(LAN, lambda: serve(ToyTarget()))
        link.cut()
        ids, *_ = await answer(link, Loops(GREEDY, 0, random.Random(0)), [9], 400, patience=1.0)
        assert len(ids) == 24

    run(main())


def test_bytes_are_counted_as_they_cross_the_link() -> None:
    async def main() -> None:
        served = serve(ToyTarget())
        link = Link(LAN, lambda: served)
        _, _, done, _ = await answer(link, ToyDrafter(GREEDY, 0.7, random.Random(1)), LONG)
        link.end()
        assert done.traffic.bytes_up == link.up.bytes
        assert done.traffic.bytes_down == link.down.bytes
        assert len(served.sessions) == 1  # the farewell is on its way
        rows = len(LONG) + 48 - 1
        assert done.traffic.bytes_down > rows * FORM.size
        assert done.traffic.calls < 48

    run(main())


def test_a_client_with_another_drafter_is_told_both_fingerprints() -> None:
    async def main() -> None:
        link = Link(LAN, lambda: serve(ToyTarget()))
        client = Client(link.connect, ToyDrafter(GREEDY, 1, random.Random(0)), Settings("ff" * 32, FORM))
        with pytest.raises(RefusedError, match="the client has drafter ffffffffffff, but the server 0123456789ab"):
            async for _ in client.answer([9], GREEDY, 4):
                pass
        link.end()

    run(main())


def test_a_server_that_takes_its_time_is_not_taken_for_a_link_that_is_cut() -> None:
    async def main() -> None:
        target = ToyTarget()
        served = serve(target)
        link = Link(LAN, lambda: served)

        async def slow_down() -> None:
            await asyncio.sleep(0.1)
            target.seconds = 30.0

        slowing = asyncio.ensure_future(slow_down())
        ids, verified, done, _ = await answer(link, ToyDrafter(GREEDY, 0.7, random.Random(0)), LONG)
        await slowing
        link.end()
        assert ids == plain(LONG, GREEDY, 48)
        assert all(verified)
        assert done.traffic.offline == 0
        assert asyncio.get_running_loop().time() > 60

    run(main())


def test_a_client_waits_for_four_ways_and_three_of_the_servers_times() -> None:
    waiting = Waiting()
    assert waiting.seconds == 10
    waiting.took(1.5, 0.6)
    assert LOST_AFTER < 4 * 0.9 + 3 * 0.6
    assert waiting.seconds == pytest.approx(4 * 0.9 + 3 * 0.6)
    for _ in range(100):
        waiting.took(0.011, 0.010)
    assert waiting.seconds == LOST_AFTER
    assert Waiting(60.0).seconds == 60
