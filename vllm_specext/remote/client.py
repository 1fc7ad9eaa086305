"""A client that drafts: its answers, one after the other or several at a time, over connections to one server."""

import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from itertools import count

from vllm_specext.remote.answer import Answer, Event, Means, Settings
from vllm_specext.remote.connection import Connection
from vllm_specext.remote.drafting import Drafter
from vllm_specext.remote.events import Done
from vllm_specext.remote.exchange import Waiting
from vllm_specext.remote.pace import Pace
from vllm_specext.remote.protocol import Sampling


class Client:
    def __init__(
        self,
        connect: Callable[[], Awaitable[Connection]],
        drafter: Drafter,
        settings: Settings,
        chooser: random.Random | None = None,
        pace: Pace | None = None,
    ) -> None:
        """``connect`` makes a connection or raises ``LinkLost``. ``chooser`` makes the names of sessions, and how much
        longer than the last one a pause is. ``pace`` has what earlier answers have shown."""
        chooser, self.pace = chooser or random.SystemRandom(), pace or Pace()
        self.drafter, self.settings, self.waiting = drafter, settings, Waiting(settings.lost_after)
        number = count(1).__next__
        self._means = Means(connect, drafter, settings, chooser, self.pace, self.waiting, number)

    async def answer(self, prompt: list[int], sampling: Sampling, max_tokens: int) -> AsyncGenerator[Event, None]:
        """The tokens of an answer as they come, and ``Done`` at its end.

        Raises ``RefusedError``.
        """
        session = Answer(self._means, prompt, sampling, max_tokens)
        done: Done | None = None
        try:
            async with aclosing(session.events()) as events:
                async for event in events:
                    if isinstance(event, Done):
                        done = event
                    else:
                        yield event
        finally:
            await session.close()
        # Whoever goes away now leaves nothing to be ended.
        assert done is not None
        yield done

    def with_settings(self, settings: Settings) -> "Client":
        """The same with other ``settings``."""
        return Client(self._means.connect, self.drafter, settings, self._means.chooser, self.pace)
