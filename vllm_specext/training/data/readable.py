"""Rows that have none of the forms: a few are left out and counted, and more are refused."""

from collections.abc import Iterator, Sequence
from itertools import islice

from tqdm import tqdm

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.conversation import Found
from vllm_specext.training.data.formats import read_row
from vllm_specext.training.data.json_rows import Numbered
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.sources import HUB, rows_of_all

FEW, SHARE = 8, 0.01
"""So many rows that cannot be read, or this share of all so far, are mistakes in the data; more are another form."""


class Readable:
    """What rows say, and how many say nothing."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.read = self.unreadable = 0
        self.first: str | None = None
        """What is wrong with the first that cannot be read, with its place."""

    def rows(self, numbered: Numbered) -> Iterator[Found]:
        """What each row says. ``ConfigurationError`` where too many have none of the forms."""
        for where, row in numbered:
            self.read += 1
            try:
                found = read_row(row, where, self._vocab_size)
            except ConfigurationError as error:
                self._note(error)
                found = Reason.UNREADABLE
            yield found

    def _note(self, error: ConfigurationError) -> None:
        self.unreadable += 1
        self.first = self.first or str(error)
        if self.unreadable > max(FEW, SHARE * self.read):
            raise ConfigurationError(
                f"{self.unreadable} of the first {self.read} rows in --data cannot be read, of which the first: "
                f"{self.first}"
            ) from None


def look_through(data: Sequence[str], samples: int | None, vocab_size: int) -> tuple[Readable, int | None]:
    """Read the first ``samples`` rows of all files of ``data``, so that damage is told before the target has answered
    what is before it. What is on the hub is not fetched for this. The number is that of all rows, where it is known.

    ``ConfigurationError`` where a file is damaged, or too many rows cannot be read.
    """
    readable = Readable(vocab_size)
    if local := [name for name in data if not name.startswith(HUB)]:
        numbered = islice(rows_of_all(local), samples)
        for _ in tqdm(readable.rows(numbered), desc="reading", unit="row", mininterval=5):
            pass
    return readable, readable.read if len(local) == len(data) else samples
