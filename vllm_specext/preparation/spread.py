"""One target on several devices: engines that each answer a part of the conversations and write a shard of it."""

from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any, Protocol

from vllm_specext.training.data.answers import Answer, Answers, Turn
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.turns import conversation_of


class RemoteEngine(Protocol):
    """An engine elsewhere, with the methods of ``CapturingAnswerer``."""

    def submit(self, method: str, *arguments: Any) -> "Future[Any]":
        """Have ``method`` called, after all that were submitted before."""
        ...


class SpreadAnswerer:
    """A ``Capturing`` over several ``engines``. All turns of a conversation go to the same one.

    An error of one engine is raised, and what was not written is lost.
    """

    def __init__(self, engines: Sequence[RemoteEngine]) -> None:
        self.engines = list(engines)
        self._places: dict[str, int] = {}
        """The engine of each conversation that was not forgotten."""
        self._unasked: list[list[Turn]] = [[] for _ in engines]
        """Turns for each engine, which is asked again when it has given an answer."""
        self._running = [0] * len(engines)
        """Turns that each engine was asked and has not answered."""
        self._asked: dict[int, Future[Answers]] = {}
        """By engine, those that are asked now."""

    def exchange(self, turns: Sequence[Turn]) -> Answers:
        """As ``Answerer`` says."""
        for turn in turns:
            self._unasked[self._place(turn.name)].append(turn)
        for number, engine in enumerate(self.engines):
            if number not in self._asked and (self._unasked[number] or self._running[number]):
                self._asked[number] = engine.submit("exchange", self._unasked[number])
                self._running[number] += len(self._unasked[number])
                self._unasked[number] = []
        done, _ = wait(self._asked.values(), return_when=FIRST_COMPLETED)
        answers: dict[str, Answer | None] = {}
        for number in [number for number, asked in self._asked.items() if asked in done]:
            found = self._asked.pop(number).result()
            self._running[number] -= len(found)
            answers |= found
        return answers

    def abandon(self) -> None:
        """As ``Answerer`` says."""
        for abandoned in [engine.submit("abandon") for engine in self.engines]:
            abandoned.result()
        self._asked, self._running = {}, [0] * len(self.engines)
        self._unasked, self._places = [[] for _ in self.engines], {}

    def write(self, path: Path, rows: Sequence[Row], over: Collection[str], target: str, source: str) -> list[str]:
        """Each engine writes a file of its own, even where it has no rows: it then only forgets."""
        parts: list[list[Row]] = [[] for _ in self.engines]
        known = set(self._places)
        for row in rows:
            parts[self._place(row.key)].append(row)
        files = [path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(len(parts))]
        written = [
            engine.submit("write", file, part, frozenset(over), target, source)
            for engine, file, part in zip(self.engines, files, parts, strict=True)
        ]
        missing = [key for each in written for key in each.result()]
        for key in {*over, *self._places.keys() - known}:
            self._places.pop(key, None)
        return missing

    def _place(self, name: str) -> int:
        """The engine of the turn or row ``name``."""
        conversation = conversation_of(name)
        if conversation not in self._places:
            used = list(self._places.values())
            # The least used so far.
            self._places[conversation] = min(range(len(self.engines)), key=used.count)
        return self._places[conversation]
