"""The shards of a preparation: one for each group of conversations, written when the group's rows are known.

A preparation that was killed begins anew, and gets the answers that were already written from the files beside the
shards, so that the target answers and reads only what is missing.
"""

import json
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Protocol

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.answers import Answer, Answerer, Answers, Turn
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.turns import conversation_of
from vllm_specext.training.shards import SUFFIX
from vllm_specext.whole_files import whole

GROUP = ".group.json"

MOST_BYTES = 2**30
"""No group's file is larger: it has some bytes for each token."""


class Capturing(Answerer, Protocol):
    """An ``Answerer`` that keeps what it computes until ``write``."""

    def write(self, path: Path, rows: Sequence[Row], over: Collection[str], target: str, source: str) -> list[str]:
        """Write the features of ``rows`` to ``path``, or to files beside it whose names begin alike, and forget the
        conversations with the keys ``over``. Returns the keys of the rows that are missing."""
        ...


@dataclass(frozen=True)
class Group:
    """What is known of a group of conversations when its shard has been written."""

    source: str
    keys: list[str]
    """Of its rows."""
    missing: list[str]
    """Of those rows that are not in the shard, because states were lost."""
    answers: dict[str, tuple[list[int], bool]]
    """By the turn's name: token ids, and whether the target ended the answer."""
    shards: list[str]
    """The names of the files."""


class FeatureFolder:
    """The ``Answerer`` for a preparation whose rows go to ``keep``, group by group.

    ``target`` is the `fingerprint` of the target, ``source`` tells the data and all settings apart: a folder that was
    begun with others is refused with ``ConfigurationError``. ``missing`` has the keys of rows without features.
    """

    def __init__(self, capturing: Capturing, folder: Path, target: str, source: str) -> None:
        self.capturing, self.folder, self.target, self.source = capturing, folder, target, f"{target} {source}"
        self.missing: list[str] = []
        self.number = 0
        """Of the next group that ends."""
        with self._writable():
            folder.mkdir(parents=True, exist_ok=True)
        self._files: deque[int] = deque()
        """Numbers of the groups that an earlier start has written, of which nothing was read yet."""
        self._check()
        self._written: dict[int, Group] = {}
        """Those of which something was read, by number."""
        self._known: dict[str, tuple[list[int], bool]] = {}
        """Their answers."""
        self._answers: dict[str, tuple[list[int], bool]] = {}
        """Those of the groups that have not ended."""
        self._unasked: list[Turn] = []

    def exchange(self, turns: Sequence[Turn]) -> Answers:
        """As ``Answerer`` says; what was written is not asked again."""
        self._unasked += [turn for turn in turns if not self._knows(turn.name)]
        answers: dict[str, Answer | None] = {}
        for turn in turns:
            if turn.name in self._known:
                ids, ended = self._known[turn.name]
                answers[turn.name] = Answer(tuple(ids), ended)
        if not answers:
            unasked, self._unasked = self._unasked, []
            answers = dict(self.capturing.exchange(unasked))
        for name, answer in answers.items():
            if answer is not None:
                self._answers[name] = list(answer.token_ids), answer.ended
        return answers

    def abandon(self) -> None:
        """As ``Answerer`` says."""
        self._unasked, self._answers = [], {}
        self.capturing.abandon()

    def keep(self, rows: Sequence[Row], over: Collection[str]) -> None:
        """A group ends, in which the conversations ``over`` were answered, told by their keys, and ``rows`` is what is
        kept of it: write their features, unless that has been done."""
        self._read_up_to(self.number)
        group, keys = self._written.pop(self.number, None), [row.key for row in rows]
        answers = {name: answer for name, answer in self._answers.items() if conversation_of(name) in over}
        for name in answers:
            del self._answers[name]
            self._known.pop(name, None)
        if group is None or group.keys != keys or group.shards != self._shards():
            with self._writable():
                for name in self._shards():
                    (self.folder / name).unlink()
                missing = self.capturing.write(self._path(SUFFIX), rows, over, self.target, self.source)
                group = Group(self.source, keys, missing, answers, self._shards())
                with whole(self._path(GROUP)) as part:
                    part.write_text(json.dumps(asdict(group)), encoding="utf-8")
        self.missing += group.missing
        self.number += 1

    def end(self) -> None:
        """There are no more groups: remove those that an earlier start has left, whose groups were smaller."""
        with self._writable():
            for path in self.folder.glob(f"*{GROUP}"):
                number = path.name.removesuffix(GROUP)
                if number.isdecimal() and int(number) >= self.number:
                    for shard in (self.folder / f"{number}{SUFFIX}", *self.folder.glob(f"{number}-*{SUFFIX}"), path):
                        shard.unlink(missing_ok=True)

    def _check(self) -> None:
        for path in sorted(self.folder.glob(f"*{GROUP}")):
            found = _read(path)
            if found is None:
                continue
            if found.source != self.source:
                raise ConfigurationError(
                    f"{str(self.folder)!r} has features of other data, settings or another target ({path.name}); "
                    "expected a folder that is empty or was begun with the same."
                )
            if (number := path.name.removesuffix(GROUP)).isdecimal():
                self._files.append(int(number))

    def _knows(self, name: str) -> bool:
        """Whether the answer to the turn ``name`` was written: it is looked for in one group after the other."""
        while name not in self._known and self._files:
            self._read_up_to(self._files[0])
        return name in self._known

    def _read_up_to(self, number: int) -> None:
        while self._files and self._files[0] <= number:
            place = self._files.popleft()
            if (found := _read(self.folder / f"{place:05d}{GROUP}")) is not None:
                self._written[place] = found
                self._known |= found.answers

    def _path(self, suffix: str) -> Path:
        return self.folder / f"{self.number:05d}{suffix}"

    def _shards(self) -> list[str]:
        """The names of the group's files that are there."""
        beside = sorted(self.folder.glob(f"{self.number:05d}-*{SUFFIX}"))
        return [path.name for path in (self._path(SUFFIX), *beside) if path.exists()]

    @contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ConfigurationError(
                f"the features cannot be written to {str(self.folder)!r} ({error.strerror or type(error).__name__})."
            ) from error


def _read(path: Path) -> Group | None:
    """``None`` for a file that is not there or not whole: its group is done again."""
    try:
        if path.stat().st_size > MOST_BYTES:
            return None
        found = Group(**json.loads(path.read_text(encoding="utf-8")))
        return found if isinstance(found.answers, dict) else None
    except (OSError, ValueError, TypeError, RecursionError):
        return None
