"""One target on several devices: engines that each answer a part of the conversations and write a shard of it."""

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Protocol

from vllm_specext.training.data.answers import Answer, Turn
from vllm_specext.training.data.row import Row


class RemoteEngine(Protocol):
    """An engine elsewhere, with the methods of ``CapturingAnswerer``."""

    def submit(self, method: str, *arguments: Any) -> "Future[Any]":
        """Have ``method`` called, after all that were submitted before."""
        ...


class SpreadAnswerer:
    """A ``Capturing`` over several ``engines``. All turns of a conversation go to the same one.

    An error of one engine is raised, and the group of conversations is lost.
    """

    def __init__(self, engines: Sequence[RemoteEngine]) -> None:
        self.engines = list(engines)
        self._places: dict[str, int] = {}
        """The engine of each conversation since the last shard."""

    def answer(self, turns: Sequence[Turn]) -> list[Answer | None]:
        parts: list[list[int]] = [[] for _ in self.engines]
        for number, turn in enumerate(turns):
            parts[self._place(turn.name)].append(number)
        answers: list[Answer | None] = [None] * len(turns)
        asked = [
            (part, engine.submit("answer", [turns[number] for number in part]))
            for part, engine in zip(parts, self.engines, strict=True)
            if part
        ]
        for part, answered in asked:
            for number, answer in zip(part, answered.result(), strict=True):
                answers[number] = answer
        return answers

    def write(self, path: Path, rows: Sequence[Row], target: str, source: str) -> list[str]:
        """Each engine writes a file of its own, even where it has no rows: it then only forgets."""
        parts: list[list[Row]] = [[] for _ in self.engines]
        for row in rows:
            parts[self._place(row.key)].append(row)
        files = [path.with_name(f"{path.stem}-{number}{path.suffix}") for number in range(len(parts))]
        written = [
            engine.submit("write", file, part, target, source)
            for engine, file, part in zip(self.engines, files, parts, strict=True)
        ]
        missing = [key for each in written for key in each.result()]
        self._places.clear()
        return missing

    def _place(self, name: str) -> int:
        """The engine of the turn or row ``name``, which ends with the turn's number."""
        conversation = name.rpartition("-")[0]
        if conversation not in self._places:
            used = list(self._places.values())
            # The least used so far.
            self._places[conversation] = min(range(len(self.engines)), key=used.count)
        return self._places[conversation]
