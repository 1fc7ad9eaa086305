"""Conversations of a server: whose a session is, what is verified twice, and frames that are no messages."""

import asyncio
import gc
import random
import tracemalloc
from typing import Any

import pytest

from tests.unit.remote_link import (
    FINGERPRINT,
    FORM,
    GREEDY,
    PRESETS,
    Link,
    ToyDrafter,
    ToyTarget,
    answer,
    next_token,
    plain,
    run,
    serve,
)
from vllm_specext.remote import sessions
from vllm_specext.remote.connection import LinkLost
from vllm_specext.remote.protocol import (
    PROTOCOL,
    Error,
    Hello,
    Need,
    Open,
    Tokens,
    Verified,
    Verify,
    encode,
    from_server,
    ids_to_bytes,
)
from vllm_specext.remote.sessions import IDLE_SECONDS, PER_KEY, PER_SECOND
from vllm_specext.remote.text import digest

LAN = PRESETS["lan"]


def test_a_tree_that_is_sent_again_is_verified_once() -> None:
    async def main() -> None:
        target = ToyTarget()
        served = serve(target)
        link = Link(LAN, lambda: served)
        end = await link.connect()
        text = [9, 10, 11]
        verify = Verify(5, bytes(16), 3, digest(text), b"", b"", 0)
        await end.send(encode(Hello(1, PROTOCOL, FINGERPRINT, "float16")))
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
            await again.send(encode(Hello(1, PROTOCOL, FINGERPRINT, "float16")))
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


def test_a_client_of_another_protocol_is_told_so() -> None:
    async def main() -> None:
        link = Link(LAN, lambda: serve(ToyTarget()))
        end = await link.connect()
        await end.send(encode(Hello(1, PROTOCOL - 1, FINGERPRINT, "int8")))
        answer = from_server(await end.receive())
        link.end()
        assert isinstance(answer, Error)
        assert f"speaks protocol {PROTOCOL - 1}, but the server protocol {PROTOCOL}" in answer.sentence

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
            for message in (Hello(1, PROTOCOL, FINGERPRINT, "int8"), *messages):
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


def test_answers_that_may_be_asked_for_again_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three sessions with an answer each, two fit. The first is verified again when it asks again."""
    text = [9, 10, 11]
    monkeypatch.setattr(sessions, "MOST_BYTES", 2 * 3 * FORM.size)

    async def main() -> None:
        target = ToyTarget(seconds=0.0)
        served = serve(target)
        link = Link(LAN, lambda: served)
        end = await link.connect()

        async def said(message: Any) -> Any:
            await end.send(encode(message))
            await asyncio.sleep(0.1)
            return from_server(await end.receive())

        async def asked(name: int) -> Any:
            return await said(Verify(1, bytes([name] * 16), 3, digest(text), b"", b"", 0))

        await said(Hello(1, PROTOCOL, FINGERPRINT, "float16"))
        for name in range(3):
            await said(Open(1, bytes([name] * 16), 3, digest(text), 9, GREEDY, 3))
            await said(Tokens(1, bytes([name] * 16), 0, ids_to_bytes(text)))
            assert isinstance(await asked(name), Verified)
        for name, verified in ((2, 3), (1, 3), (0, 4)):
            assert isinstance(await asked(name), Verified)
            assert target.asked == verified
        link.end()

    run(main())


def test_a_session_has_so_many_trees_verified_in_a_second() -> None:
    async def main() -> None:
        target = ToyTarget(seconds=0.0)
        served = serve(target)
        link = Link(LAN, lambda: served)
        end = await link.connect()
        await end.send(encode(Hello(1, PROTOCOL, FINGERPRINT, "float16")))
        await end.receive()
        text = [9, 10, 11]
        opening = Open(2, bytes(16), 3, digest(text), 4000, GREEDY, 3)
        for message in (opening, Tokens(3, bytes(16), 0, ids_to_bytes(text))):
            await end.send(encode(message))
            await end.receive()
        told: list[Any] = []
        while asyncio.get_running_loop().time() < 2:
            verify = Verify(len(told) + 5, bytes(16), len(text), digest(text), b"", b"", len(text) - 1)
            await end.send(encode(verify))
            told.append(from_server(await end.receive()))
            if isinstance(told[-1], Verified):
                text.append(next_token(text, GREEDY))
            else:
                assert isinstance(told[-1], Error)
                assert told[-1].code == "busy"
                await asyncio.sleep(told[-1].retry_ms / 1000)
        link.end()
        assert any(isinstance(one, Error) for one in told)
        assert 1.5 * PER_SECOND < target.asked <= 2 * PER_SECOND

    run(main())


def test_eight_hours_of_clients_that_come_and_vanish_leave_nothing() -> None:
    async def main() -> None:
        served = serve(ToyTarget())
        clock, grown = asyncio.get_running_loop().time, []
        for number in range(320):
            link = Link(PRESETS["4g"], lambda: served, key=str(number % 50), seed=number)
            asking = asyncio.ensure_future(
                answer(link, ToyDrafter(GREEDY, 0.7, random.Random(number)), [9, 10, number + 8], 16)
            )
            await asyncio.sleep(90 if number % 3 else 0.3)
            if number % 3 == 0:  # it is killed: no word of goodbye comes
                link.cut()
                asking.cancel()
                await asyncio.sleep(89.7)
            link.end()
            assert len(served.sessions) <= 2 * IDLE_SECONDS / 90
            if number % 40 == 39:
                gc.collect()
                grown.append(tracemalloc.get_traced_memory()[0])
        assert clock() >= 8 * 3600
        assert max(grown[4:]) - min(grown[:4]) < 100_000

    tracemalloc.start()
    run(main())
    tracemalloc.stop()


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
