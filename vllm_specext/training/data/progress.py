"""How far a preparation is, for the person who waits for it."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from tqdm import tqdm

from vllm_specext.training.data.row import Row

EVERY = 60.0
"""Seconds from one line to the next."""


class Progress:
    """Counts what was read and kept, and says so every minute."""

    def __init__(
        self, total: int | None, say: Callable[[str], None], now: Callable[[], float] = time.monotonic
    ) -> None:
        """``total``: rows that there are to read, where that is known."""
        self._total, self._say, self._now = total, say, now
        self._said = now()
        self._read = self._read_then = self._rows = self._tokens = 0

    @contextmanager
    def shown(self) -> Iterator["Progress"]:
        """With a bar on standard error, which goes into the stage's log."""
        with tqdm(total=self._total, desc="preparing", unit="row", mininterval=5) as self._bar:
            yield self

    def note(self, read: int, kept: Sequence[Row]) -> None:
        """So many more rows of input, and what was kept of them."""
        self._read += read
        self._rows += len(kept)
        self._tokens += sum(row.loss_tokens for row in kept)
        self._bar.update(read)
        self._bar.set_postfix(rows=self._rows, refresh=False)
        if self._now() >= self._said + EVERY:
            now = self._now()
            self._say(self._line((self._read - self._read_then) / (now - self._said)))
            self._said, self._read_then = now, self._read

    def _line(self, rate: float) -> str:
        """``rate``: rows a second since the last line, because what an earlier start has answered takes no time."""
        of_all = "" if self._total is None else f" of {self._total}"
        left = "" if self._total is None else f", {(self._total - self._read) / rate / 3600:.1f} hours left"
        return (
            f"{self._read}{of_all} rows read, {self._rows} kept with {self._tokens} tokens to learn, "
            f"{60 * rate:.0f} rows a minute{left}"
        )
