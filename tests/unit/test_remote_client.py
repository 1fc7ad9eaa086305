"""A client and a server over a link that is cut and healed: the text is the target's, whatever happens."""

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.remote_link import (
    END,
    FINGERPRINT,
    FORM,
    PRESETS,
    SEGMENT,
    Direction,
    Link,
    Preset,
    ToyDrafter,
    ToyTarget,
    next_token,
    plain,
    run,
    serve,
)
from vllm_specext.remote.client import Client, Settings
from vllm_specext.remote.connection import LinkLost
from vllm_specext.remote.events import Done, Retracted, Said
from vllm_specext.remote.exchange import RefusedError, Waiting
from vllm_specext.remote.protocol import (
    Error,
    Hello,
    Need,
    Open,
    Sampling,
    Tokens,
    Verified,
    Verify,
    encode,
    from_server,
    ids_to_bytes,
)
from vllm_specext.remote.sessions import IDLE_SECONDS, PER_KEY
from vllm_specext.remote.text import digest

LAN = PRESETS["lan"]
GREEDY = Sampling(0)
LONG = next(ids for ids in ([9, 10, first] for first in range(8, 99)) if len(plain(ids, GREEDY, 48)) == 48)
"""A prompt whose answer does not end early."""


def settings(**changes: Any) -> Settings:
    return Settings(FINGERPRINT, FORM, **({"ends": frozenset({END})} | changes))


async def answer(
    link: Link, drafter: ToyDrafter, prompt: list[int], max_tokens: int = 48, **changes: Any
) -> tuple[list[int], list[bool], Done, list[float]]:
    """The tokens, whether each was verified when it was said last, how it ended, and when each was said."""
    client = Client(link.connect, drafter, settings(**changes), random.Random(drafter.chooser.random()))
    ids: list[int] = []
    verified: list[bool] = []
    times: list[float] = []
    async for event in client.answer(prompt, drafter.sampling, max_tokens):
        if isinstance(event, Said):
            ids += event.ids
            verified += [event.verified] * len(event.ids)
            times += [asyncio.get_running_loop().time()] * len(event.ids)
        elif isinstance(event, Retracted):
            del ids[-event.count :], verified[-event.count :], times[-event.count :]
        else:
            return ids, verified, event, times
    raise AssertionError("no end")


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


def test_a_tree_that_is_sent_again_is_verified_once() -> None:
    async def main() -> None:
        target = ToyTarget()
        served = serve(target)
        link = Link(LAN, lambda: served)
        end = await link.connect()
        text = [9, 10, 11]
        verify = Verify(5, bytes(16), 3, digest(text), b"", b"", 0)
        await end.send(encode(Hello(1, 1, FINGERPRINT, "float16")))
        await end.receive()
        opening = Open(2, bytes(16), 3, digest(text), 9, GREEDY, 3)
        await end.send(encode(opening))
        assert from_server(await end.receive()) == Need(2, 0)
        await end.send(encode(Tokens(3, bytes(16), 0, ids_to_bytes(text))))
        assert from_server(await end.receive()) == Need(3, 3)
        await end.send(encode(verify))
        await asyncio.sleep(0.005)
        link.cut()  # the answer is lost on its way
        await asyncio.sleep(1)
        link.heal()
        answers = []
        for number in (6, 7):
            again = await link.connect()
            await again.send(encode(Hello(1, 1, FINGERPRINT, "float16")))
            await again.receive()
            await again.send(encode(opening))
            assert isinstance(from_server(await again.receive()), Need)
            await again.send(encode(Verify(number, *(getattr(verify, name) for name in verify.__struct_fields__[1:]))))
            answers.append(from_server(await again.receive()))
        link.end()
        assert all(isinstance(one, Verified) and one.length == 3 for one in answers)
        assert answers[0].ids == answers[1].ids == ids_to_bytes([next_token(text, GREEDY)])
        assert target.asked == 1

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
            if isinstance(event, Said) and event.verified and not cut and client._waiting.way is not None:
                await asyncio.sleep(0.001)
                cut, within = clock(), 1.1 * client._waiting.seconds
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


def test_sessions_belong_to_a_user_and_are_not_many() -> None:
    async def main() -> None:
        served = serve(ToyTarget(), max_length=100)
        clock = asyncio.get_running_loop().time

        def opening(session: int, length: int = 3, prompt: int = 3) -> Open:
            return Open(1, bytes([session] * 16), length, bytes(8), 9, GREEDY, prompt)

        async def said(key: str, *messages: Any) -> Any:
            link = Link(LAN, lambda: served, key=key)
            end = await link.connect()
            for message in (Hello(1, 1, FINGERPRINT, "int8"), *messages):
                await end.send(encode(message))
                answered = from_server(await end.receive())
            link.end()
            return answered

        for session in range(PER_KEY):
            assert isinstance(await said("one", opening(session)), Need)
        assert (await said("one", opening(99))).code == "busy"
        assert isinstance(await said("two", opening(99)), Need)
        assert (await said("two", opening(0))).code == "unknown"
        lost = Verify(1, bytes([0] * 16), 3, bytes(8), b"", b"", 0)
        assert (await said("two", lost)).code == "unknown"
        assert "no such session" in (await said("one", lost)).sentence
        assert "another text" in (await said("one", opening(0), lost)).sentence
        assert "99 fit" in (await said("one", opening(0, 100, prompt=100))).sentence
        assert "cannot have a prompt of 4" in (await said("one", opening(0, prompt=4))).sentence
        await asyncio.sleep(IDLE_SECONDS + 1)
        assert isinstance(await said("one", opening(99)), Need)
        assert len(served.sessions) == 1
        assert clock() < 2 * IDLE_SECONDS

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


def test_a_frame_that_is_no_message_ends_the_connection_and_nothing_else() -> None:
    async def main() -> None:
        served = serve(ToyTarget())
        link = Link(LAN, lambda: served)
        for frame in (b"\xc1", b"", bytes(70_000)):
            end = await link.connect()
            await end.send(frame)
            told = from_server(await end.receive())
            assert isinstance(told, Error)
            assert told.code == "malformed"
            with pytest.raises(LinkLost):
                await end.receive()
        ids, *_ = await answer(link, ToyDrafter(GREEDY, 0.7, random.Random(0)), [9, 10])
        link.end()
        assert ids == plain([9, 10], GREEDY, 48)

    run(main())


@pytest.mark.parametrize("preset", PRESETS)
def test_a_link_is_as_fast_and_as_slow_as_it_says(preset: str) -> None:
    kind = PRESETS[preset]

    async def main() -> None:
        link = Link(kind, lambda: serve(ToyTarget()))
        loop = asyncio.get_running_loop()
        count, size = 4000, 20 * SEGMENT
        for _ in range(count):
            last = link.down.arrival(size)
        per_second = count * size / (last - loop.time() - link.down.delay)
        assert per_second == pytest.approx(kind.rate * 125e3, rel=0.05)
        quiet = Direction(link.up.rate, link.up.delay, link.up.jitter, 0.0, random.Random(0))
        delays = []
        for _ in range(2000):
            await asyncio.sleep(1)
            delays.append(quiet.arrival(100) - loop.time())
        assert sum(delays) / len(delays) == pytest.approx(kind.up / 1e3 + 100 / quiet.rate, rel=0.05)

    run(main())


def test_a_client_waits_for_four_ways_and_three_of_the_servers_times() -> None:
    waiting = Waiting()
    assert waiting.seconds == 10
    waiting.took(0.5, 0.2)
    assert waiting.seconds == pytest.approx(4 * 0.3 + 3 * 0.2)
    for _ in range(100):
        waiting.took(0.011, 0.010)
    assert waiting.seconds == 0.25
