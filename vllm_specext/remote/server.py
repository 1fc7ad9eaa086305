"""The server's side of a conversation: messages in, answers out, the engine asked where a tree is to be verified."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from dataclasses import dataclass

from vllm_specext.errors import ConfigurationError
from vllm_specext.remote.connection import Connection, LinkLost
from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.protocol import (
    PROTOCOL,
    WORKING_SECONDS,
    Close,
    Error,
    FromClient,
    FromServer,
    Hello,
    MalformedError,
    Need,
    Open,
    Rows,
    Tokens,
    Verified,
    Verify,
    Welcome,
    Working,
    encode,
    from_client,
    ids_from_bytes,
    ids_to_bytes,
)
from vllm_specext.remote.rows import RowFormat
from vllm_specext.remote.sessions import BUSY_MS, PER_SECOND, Refusal, Session, Sessions
from vllm_specext.remote.verifier import Outcome, Verifier

ROWS_AT_ONCE = 256
"""In a frame."""


@dataclass(frozen=True)
class Served:
    """What all conversations with a server have in common."""

    limits: Welcome
    """What a ``Hello`` is answered with, but for its number."""
    drafter: str
    """Fingerprint of the drafter that clients must have."""
    heads: int
    """Of the drafter's cross-attention, for keys and values."""
    head_size: int
    ends: frozenset[int]
    """Tokens that end an answer."""
    sessions: Sessions
    verifier: Verifier


async def converse(connection: Connection, key: str, served: Served) -> None:
    """Answer the frames of a user, who is known by ``key``, until the connection ends. One that is no message ends
    it."""
    conversation = Conversation(key, served)
    try:
        while True:
            frame = await connection.receive()
            try:
                message = from_client(frame)
            except MalformedError as error:
                await connection.send(encode(Error(0, "malformed", str(error))))
                await connection.close()
                return
            async with aclosing(conversation.answers(message)) as answers:
                async for answer in answers:
                    await connection.send(encode(answer))
    except LinkLost:
        return


class Conversation:
    def __init__(self, key: str, served: Served) -> None:
        self._key, self._served, self._verifier = key, served, served.verifier.for_user(key)
        self._form: RowFormat | None = None
        """Of the rows that the client wants; ``None`` before its ``Hello``."""

    async def answers(self, message: FromClient) -> AsyncGenerator[FromServer, None]:
        try:
            if isinstance(message, Hello):
                yield self._welcome(message)
            elif self._form is None:
                raise Refusal("refused", "a connection begins with a hello.")
            elif isinstance(message, Open):
                session = self._served.sessions.open(self._key, message, self)
                async for working in _until_done(session, message):
                    yield working
                yield Need(message.number, session.needs())
            elif isinstance(message, Tokens):
                session = self._session(message)
                session.put(message.first, ids_from_bytes(message.ids, self._served.limits.vocabulary).tolist())
                if len(session.text) == session.wanted:
                    yield Need(message.number, session.needs())
            elif isinstance(message, Verify):
                async for answer in self._verified(message, self._form):
                    yield answer
            else:
                assert isinstance(message, Close)
                self._served.sessions.close(message.session, self)
        except Refusal as refusal:
            yield Error(message.number, refusal.code, refusal.sentence, refusal.retry_ms)
        except MalformedError as error:
            yield Error(message.number, "malformed", str(error))
        except ConfigurationError as error:
            yield Error(message.number, "refused", str(error))

    def _welcome(self, hello: Hello) -> Welcome:
        served = self._served
        if hello.protocol != PROTOCOL:
            raise Refusal(
                "refused", f"the client speaks protocol {hello.protocol}, but the server protocol {PROTOCOL}."
            )
        if hello.drafter != served.drafter:
            raise Refusal(
                "refused",
                f"the client has drafter {hello.drafter[:12]}, but the server {served.drafter[:12]}.",
            )
        self._form = RowFormat(served.heads, served.head_size, hello.rows)
        limits = served.limits
        return Welcome(hello.number, *(getattr(limits, name) for name in limits.__struct_fields__[1:]))

    def _session(self, message: Tokens | Verify) -> Session:
        return self._served.sessions.find(message.session, self)

    async def _verified(self, message: Verify, form: RowFormat) -> AsyncIterator[FromServer]:
        session = self._session(message)
        if not session.is_asked_again(message):
            self._ask(session, message, form)
        first, asked = session.first, session.answer
        assert asked is not None
        async for working in _until_done(session, message):
            yield working
        for answer in _told(message, await asked, first, form):
            yield answer

    def _ask(self, session: Session, message: Verify, form: RowFormat) -> None:
        if session.answer is not None and not session.answer.done():
            raise Refusal("busy", "an earlier tree of the session is being verified.", BUSY_MS)
        if early := session.wait(self._served.sessions.clock()):
            raise Refusal("busy", f"{PER_SECOND} trees of a session are verified in a second.", 1000 * early)
        if not session.begins_with(message.length, message.digest):
            raise Refusal("unknown", "the session has another text; open it with its text.")
        tree = Drafted.of(message, self._served.limits)
        del session.text[message.length :]
        if session.room <= 0:
            raise Refusal("refused", f"the answer has all tokens that it may have, {session.max_tokens} at most.")
        tree = tree.within(session.room - 1)
        session.asked, session.first = message, min(message.rows, message.length - 1)
        session.answer = asyncio.ensure_future(self._outcome(session, tree, form, message.extra))
        session.answer.add_done_callback(self._answered)

    def _answered(self, done: "asyncio.Future[Outcome]") -> None:
        if not done.cancelled():
            done.exception()  # maybe nobody waits, and asyncio would tell of it
        self._served.sessions.bound_answers()

    async def _outcome(self, session: Session, tree: Drafted, form: RowFormat, extra: int) -> Outcome:
        """It goes on where the connection is lost meanwhile: the client will ask again."""
        try:
            how = (session.sampling, form, session.first, min(extra, session.room - 1 - tree.levels))
            found = await self._verifier.verify(list(session.text), tree, *how)
        except BaseException:
            session.asked = None
            raise
        tokens = found.tokens[: session.room]
        ended = [place for place, token in enumerate(tokens) if token in self._served.ends]
        finish = "stop" if ended else "length" if len(tokens) == session.room else ""
        if ended:
            tokens = tokens[: ended[0] + 1]
        session.text += tokens
        rows = found.rows[: (len(session.text) - 1 - session.first) * form.size]
        return Outcome(tokens, rows, found.server_ms, finish)


async def _until_done(session: Session, message: Open | Verify) -> AsyncIterator[Working]:
    """Says now and then that a session's answer is being worked at, until it is there. It is made in any case: who
    asked may be gone, and ask again."""
    asked = session.answer
    while asked is not None and not asked.done():
        await asyncio.wait([asked], timeout=WORKING_SECONDS)
        if not asked.done():
            yield Working(message.number)


def _told(message: Verify, outcome: Outcome, first: int, form: RowFormat) -> Iterator[FromServer]:
    """The answer, after frames of the rows for which it has no room."""
    rows, piece = outcome.rows, ROWS_AT_ONCE * form.size
    while len(rows) > piece:
        yield Rows(message.number, first, rows[:piece])
        rows, first = rows[piece:], first + ROWS_AT_ONCE
    ids = ids_to_bytes(outcome.tokens)
    yield Verified(message.number, message.length, ids, first, rows, outcome.finish, outcome.server_ms)
