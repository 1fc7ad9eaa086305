"""Rows that wait in the worker until a server takes them for its clients."""

import time
from collections.abc import Callable
from typing import Any

SECONDS = 10.0
"""Rows that nobody takes for so long are dropped."""
LONGEST_WAIT = 600.0
"""The same for a request that has no rows yet."""
MOST_BYTES = 256 << 20
"""Of all rows together; where others bring more, the oldest are dropped."""


class KeptRows:
    """By ticket, in the order in which requests came. Who takes too late, or when others have brought too much, gets
    none: its client asks for them again."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pieces: dict[str, list[bytes]] = {}
        self._since: dict[str, float] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def begin(self, ticket: str) -> None:
        """A request came, or came back: its rows are made from the first on."""
        self.take(ticket)
        self._pieces[ticket], self._since[ticket] = [], self._clock()

    def add(self, ticket: str, rows: bytes) -> None:
        """Further rows of a request, which follow those before. Those of a request that was given up are dropped."""
        if ticket not in self._pieces:
            return
        self._pieces[ticket].append(rows)
        self._since[ticket] = self._clock()
        self._bytes += len(rows)
        self._give_up(ticket)

    def take(self, ticket: str) -> bytes:
        """All rows of a request, which are not kept any longer; empty where there are none."""
        rows = b"".join(self._pieces.pop(ticket, []))
        self._since.pop(ticket, None)
        self._bytes -= len(rows)
        return rows

    def _give_up(self, newest: str) -> None:
        now = self._clock()
        for ticket in list(self._pieces):
            # A request without rows waits for its first step, or was given up by its client before.
            has_rows = bool(self._pieces[ticket])
            is_late = now - self._since[ticket] > (SECONDS if has_rows else LONGEST_WAIT)
            if ticket != newest and (is_late or (has_rows and self._bytes > MOST_BYTES)):
                self.take(ticket)


class TakesClientRows:
    """Mixed into vLLM's worker, by its ``worker_extension_cls``."""

    model_runner: Any

    def take_client_rows(self, ticket: str) -> bytes:
        rows: bytes = self.model_runner.speculator.clients.kept.take(ticket)
        return rows
