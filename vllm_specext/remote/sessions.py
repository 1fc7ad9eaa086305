"""The server's sessions: a text of each, how it is drawn, and the last answer, to be given again to who asks again.

A session is a list of token ids. The engine holds nothing for it between two messages but what its prefix cache keeps
anyway, so that one may stay away for as long as it likes, and come back to another server with its tokens.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from vllm_specext.remote.protocol import Open, Sampling, Verify
from vllm_specext.remote.text import digest
from vllm_specext.remote.verifier import Outcome

PER_KEY = 8
"""Sessions that a user may have at a time."""
TOTAL = 1024
"""Sessions of all users."""
IDLE_SECONDS = 600.0
"""A session without messages for so long ends."""
MOST_BYTES = 512 << 20
"""Of the rows of answers that clients may ask for again."""
BUSY_MS = 500.0
"""How long a client that is refused for now is told to wait."""
PER_SECOND = 50
"""Trees of a session that are verified in a second."""


class Refusal(Exception):  # noqa: N818
    """Why a message has no answer: a ``code`` of ``protocol.Error``, and a sentence."""

    def __init__(self, code: str, sentence: str, retry_ms: float = 0.0) -> None:
        super().__init__(sentence)
        self.code, self.sentence, self.retry_ms = code, sentence, retry_ms


@dataclass
class Session:
    key: str
    """Of the user, who alone may go on with it."""
    prompt: int
    max_tokens: int
    sampling: Sampling
    wanted: int
    """Tokens of the text that the client has."""
    wanted_digest: bytes
    max_length: int
    """Of the text with its answer."""
    text: list[int] = field(default_factory=list)
    used: float = 0.0
    begun: "deque[float]" = field(default_factory=lambda: deque(maxlen=PER_SECOND))
    """When its last trees were to be verified."""
    owner: object = None
    """The conversation that opened it last."""
    asked: Verify | None = None
    """What the answer below answers, or what is being answered."""
    first: int = 0
    """The token whose row is the first of that answer."""
    answer: "asyncio.Future[Outcome] | None" = None
    """To ``asked``."""

    @property
    def room(self) -> int:
        """Tokens of the answer that may still come."""
        return min(self.max_tokens + self.prompt, self.max_length) - len(self.text)

    @property
    def kept_bytes(self) -> int:
        """Of the rows of its last answer, once that is there."""
        answer = self.answer
        if answer is None or not answer.done() or answer.cancelled() or answer.exception() is not None:
            return 0
        return len(answer.result().rows)

    def needs(self) -> int:
        """The first token that the client has to send; ``wanted`` where all are there."""
        if len(self.text) < self.wanted:
            return len(self.text)
        return self.wanted if self.begins_with(self.wanted, self.wanted_digest) else 0

    def begins_with(self, length: int, expected: bytes) -> bool:
        """Whether its first ``length`` tokens are those of a digest."""
        return len(self.text) >= length and digest(self.text[:length]) == expected

    def put(self, first: int, ids: list[int]) -> None:
        """Let its text end with ``ids`` from token ``first`` on.

        Raises ``Refusal``.
        """
        if first > len(self.text) or first + len(ids) > self.wanted:
            raise Refusal(
                "malformed",
                f"tokens {first} to {first + len(ids)} do not go on with a text of {len(self.text)} tokens up to "
                f"{self.wanted}.",
            )
        self.text[first:] = ids

    def wait(self, now: float) -> float:
        """Seconds until another tree may be verified; where it may be now, it counts."""
        early = self.begun[0] + 1 - now if len(self.begun) == PER_SECOND else 0.0
        if early <= 0:
            self.begun.append(now)
        return max(0.0, early)

    def is_asked_again(self, message: Verify) -> bool:
        return self.asked is not None and _question(self.asked) == _question(message)


def _question(message: Verify) -> tuple[int, bytes, bytes, bytes, int]:
    return message.length, message.digest, message.ids, message.parents, message.extra


class Sessions:
    """Those of all connections of a server."""

    def __init__(self, max_length: int, clock: Callable[[], float] = time.monotonic) -> None:
        """``max_length``: tokens that a text may have with its answer."""
        self._max_length, self.clock = max_length, clock
        self._sessions: dict[bytes, Session] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, key: str, message: Open, owner: object) -> Session:
        """The session of a message, which begins or goes on, and has a new owner.

        Raises ``Refusal``.
        """
        if message.length + 1 > self._max_length:
            raise Refusal("refused", f"the text has {message.length} tokens, but at most {self._max_length - 1} fit.")
        if not message.prompt <= message.length < message.prompt + message.max_tokens:
            raise Refusal(
                "malformed",
                f"a text of {message.length} tokens cannot have a prompt of {message.prompt} and an unfinished answer "
                f"of at most {message.max_tokens}.",
            )
        self._forget_idle()
        found = self._sessions.get(message.session)
        if found is not None and found.key != key:
            raise Refusal("unknown", "the session is another user's.")
        if found is None:
            found = self._new(key, message)
        elif (found.prompt, found.sampling) != (message.prompt, message.sampling):
            raise Refusal("refused", "a session goes on with the prompt and the sampling that it began with.")
        found.max_tokens, found.owner, found.used = message.max_tokens, owner, self.clock()
        found.wanted, found.wanted_digest = message.length, message.digest
        return found

    def _new(self, key: str, message: Open) -> Session:
        if len(self._sessions) >= TOTAL:
            raise Refusal("busy", f"the server has {TOTAL} sessions already.", BUSY_MS)
        if sum(session.key == key for session in self._sessions.values()) >= PER_KEY:
            raise Refusal("busy", f"a user may have {PER_KEY} sessions at a time.", BUSY_MS)
        sizes = (message.prompt, message.max_tokens)
        made = Session(key, *sizes, message.sampling, message.length, message.digest, self._max_length)
        self._sessions[message.session] = made
        return made

    def find(self, session: bytes, owner: object) -> Session:
        """Raises ``Refusal``."""
        self._forget_idle()
        found = self._sessions.get(session)
        if found is None or found.owner is not owner:
            raise Refusal("unknown", "the connection has no such session; open it with its text.")
        found.used = self.clock()
        return found

    def close(self, session: bytes, owner: object) -> None:
        found = self._sessions.get(session)
        if found is not None and found.owner is owner:
            del self._sessions[session]

    def bound_answers(self) -> None:
        """Drop answers that are kept for clients who may ask again, those of the longest quiet sessions first, until
        their rows fit into ``MOST_BYTES``. Who asks again then has the tree verified again."""
        kept = sorted((one for one in self._sessions.values() if one.kept_bytes), key=lambda one: one.used)
        size = sum(one.kept_bytes for one in kept)
        for one in kept:
            if size <= MOST_BYTES:
                return
            size -= one.kept_bytes
            one.asked = one.answer = None

    def _forget_idle(self) -> None:
        oldest = self.clock() - IDLE_SECONDS
        for name in [name for name, session in self._sessions.items() if session.used < oldest]:
            del self._sessions[name]
