"""One answer of a client: its drafter drafts, the server verifies, and without the server the drafter goes on alone.

Three states: VERIFYING asks for trees, one after the other; OFFLINE says the drafter's own tokens while it tries to
reach the server again; then the text is opened once more, and verification goes on after it (``keep``), or goes back to
where the link was lost (``rewrite``).
"""

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal

from vllm_specext.remote.connection import Connection, LinkLost
from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.drafting import Drafter
from vllm_specext.remote.events import Done, Retracted, Said, Traffic
from vllm_specext.remote.exchange import LOST_AFTER, Busy, Exchange, RefusedError, Unknown, Waiting
from vllm_specext.remote.pace import Pace
from vllm_specext.remote.protocol import (
    PIECE,
    PROTOCOL,
    Close,
    FromServer,
    Hello,
    Need,
    Open,
    Sampling,
    Tokens,
    Verified,
    Verify,
    Welcome,
    ids_from_bytes,
    ids_to_bytes,
)
from vllm_specext.remote.rows import RowFormat
from vllm_specext.remote.text import digest

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 10.0
"""Seconds between tries to reach a server."""
LOOP, TIMES = 8, 3
"""Text without a server ends where so many tokens stand so many times."""

Event = Said | Retracted | Done


@dataclass(frozen=True)
class Settings:
    drafter: str
    """The drafter's fingerprint."""
    form: RowFormat
    back_online: Literal["keep", "rewrite"] = "keep"
    lost_after: float = LOST_AFTER
    """Seconds in which nothing is heard of a server that is at work, at least, until the client goes on alone."""
    offline_limit: int = 256
    """Tokens that are said without a server, at a time. With 0 none is."""
    patience: float | None = None
    """Seconds to wait for the server when all is said that may be; without, for ever."""
    ends: frozenset[int] = frozenset()
    """Tokens that end an answer."""


@dataclass
class Text:
    prompt: int
    ids: list[int]
    verified: int
    """Tokens that the server knows of, as far as the client knows."""
    rows: int = 0
    """Tokens whose rows the drafter has."""
    exact: bool = True
    traffic: Traffic = field(default_factory=Traffic)

    @property
    def answered(self) -> int:
        return len(self.ids) - self.prompt


@dataclass(frozen=True)
class Means:
    """What the answers of a client have in common."""

    connect: Callable[[], Awaitable[Connection]]
    """Makes a connection or raises ``LinkLost``."""
    drafter: Drafter
    settings: Settings
    chooser: random.Random
    """Makes the names of sessions, and how much longer than the last one a pause is."""
    pace: Pace
    """What earlier answers have shown."""
    waiting: Waiting
    number: Callable[[], int]
    """The number of the next message."""


class Answer:
    """An answer to a ``prompt`` of at most so many tokens, in a session of its own."""

    def __init__(self, means: Means, prompt: list[int], sampling: Sampling, max_tokens: int) -> None:
        self._means, self._sampling, self._max_tokens = means, sampling, max_tokens
        self._text = Text(len(prompt), list(prompt), len(prompt))
        self._session = means.chooser.randbytes(16)
        self._exchange: Exchange | None = None
        self._limits: Welcome | None = None
        self._is_open = False
        """The server has the session and its text."""

    async def events(self) -> AsyncGenerator[Event, None]:
        text, finish = self._text, ""
        while not finish:
            try:
                exchange, limits = await self._reached()
                if not self._is_open:
                    await self._open(exchange)
                said, retracted, finish = await self._verify(exchange, limits)
            except LinkLost:
                await self._hang_up()
                async for said_alone in self._offline():
                    yield said_alone
                finish = self._finish_alone() or ("" if self._exchange else "offline")
                continue
            except Unknown:
                if not self._is_open:
                    # The server does not give it the session, perhaps because its address has changed since.
                    self._session = self._means.chooser.randbytes(16)
                    await asyncio.sleep(FIRST_PAUSE)
                self._is_open = False
                continue
            except Busy as busy:
                await asyncio.sleep(busy.seconds)
                continue
            if retracted:
                yield Retracted(retracted)
            if said:
                yield Said(said, verified=True)
        text.exact &= text.verified == len(text.ids)
        yield Done(finish, text.exact, text.traffic)

    async def _reached(self) -> tuple[Exchange, Welcome]:
        """A connection on which the server has made itself known."""
        if self._exchange is None:
            means, settings = self._means, self._means.settings
            exchange = Exchange(await means.connect(), self._text.traffic, means.waiting, self._took_rows)
            welcome = await exchange.ask(Hello(means.number(), PROTOCOL, settings.drafter, settings.form.kind))
            if not isinstance(welcome, Welcome):
                raise RefusedError("the server answers something else than it was asked.")
            self._exchange, self._limits, self._is_open = exchange, welcome, False
        assert self._limits is not None
        return self._exchange, self._limits

    async def _open(self, exchange: Exchange) -> None:
        text, means = self._text, self._means
        if means.settings.back_online == "keep":
            text.exact &= text.verified == len(text.ids)
            text.verified = len(text.ids)
        known = text.ids[: text.verified]
        how = (self._max_tokens, self._sampling, text.prompt)
        opened = Open(means.number(), self._session, len(known), digest(known), *how)
        need = await exchange.ask(opened)
        for _ in range(2):  # once more where the server had another text
            if isinstance(need, Need) and need.first < len(known):
                need = await self._tell(exchange, known, need.first)
        if need != Need(need.number, len(known)):
            raise RefusedError("the server answers something else than it was asked.")
        self._is_open = True

    async def _tell(self, exchange: Exchange, known: list[int], first: int) -> FromServer:
        """Send the text from token ``first`` on; what the server says to that."""
        for begin in range(first, len(known), PIECE):
            ids = ids_to_bytes(known[begin : begin + PIECE])
            message = Tokens(self._means.number(), self._session, begin, ids)
            if begin + PIECE < len(known):
                await exchange.send(message)
        return await exchange.ask(message)

    async def _verify(self, exchange: Exchange, limits: Welcome) -> tuple[list[int], int, str]:
        """Tokens that the target says and were not said before, the number of those that were said and are not the
        target's, and why the answer has ended, if it has."""
        text = self._text
        known, alone = text.ids[: text.verified], text.ids[text.verified :]
        pace, clock = self._means.pace, asyncio.get_running_loop().time
        begun, plain, measured = clock(), 0, text.rows > 0 and not alone
        if alone:
            tree = Drafted.chain(alone[: limits.max_nodes])
        elif measured and (plain := pace.plain_tokens()):
            tree = Drafted.chain([])
        else:
            tree = await self._means.drafter.draft(known, limits.max_nodes)
        drafted = (ids_to_bytes(tree.ids), bytes(tree.parents.tolist()), text.rows, max(0, plain - 1))
        verify = Verify(self._means.number(), self._session, len(known), digest(known), *drafted)
        text.traffic.calls += 1
        told = await exchange.ask(verify)
        if not isinstance(told, Verified):
            raise RefusedError("the server answers something else than it was asked.")
        tokens = ids_from_bytes(told.ids, limits.vocabulary).tolist()
        if measured:
            pace.took(plain, len(tokens), clock() - begun, told.server_ms / 1000)
        right = 0
        while right < min(len(tokens), len(alone)) and tokens[right] == alone[right]:
            right += 1
        more = alone[len(tokens) :] if right == len(tokens) and not told.finish else []
        text.ids[text.verified :] = tokens + more
        text.verified += len(tokens)
        text.traffic.verified += len(tokens)
        text.traffic.offline += len(more) - len(alone)
        return tokens[right:], len(alone) - right - len(more), told.finish

    def _took_rows(self, first: int, rows: bytes) -> None:
        if rows:
            self._text.rows = self._means.drafter.take(first, *self._means.settings.form.unpack(rows))

    async def _offline(self) -> AsyncIterator[Said]:
        """The drafter's own tokens until the server can be reached again, or there is no more to say without it."""
        text = self._text
        back = asyncio.ensure_future(self._come_back())
        try:
            for _ in range(self._means.settings.offline_limit):
                if back.done() or self._is_said() or self._is_loop():
                    break
                token = await self._means.drafter.say(list(text.ids), self._sampling)
                text.ids.append(token)
                text.traffic.offline += 1
                yield Said([token], verified=False)
            if not self._finish_alone():
                await asyncio.wait([back], timeout=self._means.settings.patience)
        finally:
            back.cancel()
        if back.done() and not back.cancelled():
            back.result()  # a server that refuses the client

    def _is_said(self) -> bool:
        """The answer has its end, if it is the target's."""
        text = self._text
        alone = text.verified < len(text.ids)
        return text.answered >= self._max_tokens or (alone and text.ids[-1] in self._means.settings.ends)

    def _is_loop(self) -> bool:
        tail = self._text.ids[self._text.verified :][-LOOP * TIMES :]
        return len(tail) == LOOP * TIMES and tail == tail[:LOOP] * TIMES

    def _finish_alone(self) -> str:
        """Why an answer ends while there is no server, if it ends."""
        if self._means.settings.back_online == "keep" and self._is_said():
            return "length" if self._text.answered >= self._max_tokens else "stop"
        return ""

    async def _come_back(self) -> None:
        pause = FIRST_PAUSE
        while True:
            try:
                await self._reached()
                return
            except LinkLost:
                await asyncio.sleep(pause * self._means.chooser.uniform(0.5, 1.5))
                pause = min(2 * pause, LONGEST_PAUSE)

    async def _hang_up(self) -> None:
        if self._exchange is not None:
            await self._exchange.close()
        self._exchange, self._is_open = None, False

    async def close(self) -> None:
        """Tell the server that the session has ended, if it is there."""
        if self._exchange is not None:
            try:
                await self._exchange.send(Close(self._means.number(), self._session))
                await self._exchange.close()
            except LinkLost:
                return
