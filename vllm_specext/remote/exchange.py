"""The client's end of one connection: questions with their answers, and how long to wait for one."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from vllm_specext.errors import ConfigurationError
from vllm_specext.remote.connection import Connection, LinkLost
from vllm_specext.remote.events import Traffic
from vllm_specext.remote.protocol import Error, FromClient, FromServer, Rows, Verified, Working, encode, from_server

LOST_AFTER = 3.0
"""Seconds. On a machine that does too much at once nothing was heard of a server for 1.3 s. A client that then goes on
alone has an answer that is not the target's for no reason, which is worse than a pause."""
FIRST_WAIT = 10.0
"""Seconds for what nothing is known of yet: an engine reads a prompt."""
NEW = 0.25
"""What the last round trip counts for in the mean."""


class RefusedError(ConfigurationError):
    """The server says that it will not do what it was asked, and why."""


class Unknown(Exception):  # noqa: N818
    """The server has no such session, or another text of it."""


class Busy(Exception):  # noqa: N818
    """The server wants to be asked again, after ``seconds``."""

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


@dataclass
class Waiting:
    """The smoothed times of a server and of the way to it, in seconds."""

    least: float = LOST_AFTER
    way: float | None = None
    server: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.least, FIRST_WAIT if self.way is None else 4 * self.way + 3 * self.server)

    def took(self, seconds: float, server: float) -> None:
        way = max(0.0, seconds - server)
        self.way = way if self.way is None else (1 - NEW) * self.way + NEW * way
        self.server = (1 - NEW) * self.server + NEW * server if self.server else server


class Exchange:
    def __init__(
        self, connection: Connection, traffic: Traffic, waiting: Waiting, took_rows: Callable[[int, bytes], None]
    ) -> None:
        """``took_rows`` is called with the first token of rows that come, and the rows."""
        self._connection, self._traffic, self._waiting, self._took_rows = connection, traffic, waiting, took_rows

    async def send(self, message: FromClient) -> None:
        frame = encode(message)
        self._traffic.bytes_up += len(frame)
        await self._connection.send(frame)

    async def ask(self, message: FromClient) -> FromServer:
        """The answer to a message. Rows that come before it, and in it, are taken.

        Raises ``LinkLost`` where nothing comes in time, ``Unknown``, ``Busy`` and ``RefusedError``.
        """
        clock = asyncio.get_running_loop().time
        begun = clock()
        try:
            async with asyncio.timeout(self._waiting.seconds) as limit:
                await self.send(message)
                answer = await self._answer(message.number, lambda: limit.reschedule(clock() + self._waiting.seconds))
        except TimeoutError:
            await self._connection.close()
            raise LinkLost("the server has not answered in time.") from None
        if isinstance(answer, Verified):
            self._waiting.took(clock() - begun, answer.server_ms / 1000)
        return answer

    async def _answer(self, number: int, heard: Callable[[], None]) -> FromServer:
        while True:
            frame = await self._connection.receive()
            heard()
            self._traffic.bytes_down += len(frame)
            answer = from_server(frame)
            if isinstance(answer, Error) and answer.number in (0, number):
                if answer.code == "unknown":
                    raise Unknown
                if answer.code == "busy":
                    raise Busy(answer.retry_ms / 1000)
                raise RefusedError(answer.sentence)
            if answer.number != number:
                continue  # what was asked before the link was lost
            if isinstance(answer, Rows | Verified):
                self._took_rows(answer.first, answer.rows)
            if not isinstance(answer, Rows | Working):
                return answer

    async def close(self) -> None:
        await self._connection.close()
