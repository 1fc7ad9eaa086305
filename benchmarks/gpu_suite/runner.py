"""Runs parts one after another within a budget of seconds, and keeps what they yield.

Most of an engine's part is its start: imports, compilation, graphs. Several start side by side, while parts run that
time nothing, and wait; each is measured alone.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Protocol

from benchmarks.gpu_suite.machine import digest
from benchmarks.gpu_suite.part_process import INTERRUPTED, PartProcess
from benchmarks.gpu_suite.parts import Part
from benchmarks.gpu_suite.store import DONE, Store

VERSIONS = ("gpu", "driver", "torch", "triton", "vllm")
START_LIMIT = 300.0
"""Seconds after which parts that started side by side and are not ready are ended."""
PAUSE = 0.1


class Started(Protocol):
    """As `PartProcess`."""

    def is_ready(self) -> bool: ...
    def measure(self, seconds: float) -> dict[str, Any]: ...
    def end(self) -> None: ...


class SideBySide:
    """Parts that start side by side."""

    def __init__(
        self,
        most: int,
        start: Callable[[Part], Started],
        clock: Callable[[], float],
        pause: Callable[[float], None],
    ) -> None:
        """``most``: how many at a time."""
        self._most, self._start, self._clock, self._pause = most, start, clock, pause
        self._started: dict[str, Started] = {}

    def begin(self, parts: Iterable[Part]) -> None:
        """Start those of the next ``parts`` that start slowly, up to the next one whose figures that would spoil;
        none while others wait to be measured."""
        if self._started:
            return
        for part in parts:
            if part.starts_slowly and len(self._started) < self._most:
                self._started[part.name] = self._start(part)
            elif part.is_timed:
                return

    def take(self, part: Part, seconds: float) -> Started:
        """The process of ``part``. If it is timed, all others are ready then; those that are not after so many
        ``seconds`` are ended."""
        if part.is_timed:
            self._wait(seconds)
        return self._started.pop(part.name, None) or self._start(part)

    def end(self) -> None:
        while self._started:
            self._started.popitem()[1].end()

    def _wait(self, seconds: float) -> None:
        end = self._clock() + seconds
        while (late := [name for name, each in self._started.items() if not each.is_ready()]) and self._clock() < end:
            self._pause(PAUSE)
        for name in late:
            self._started[name].end()


def run_all(
    parts: Sequence[Part],
    store: Store,
    machine: dict[str, Any],
    *,
    budget: float,
    again: bool,
    order: list[str],
    tell: Callable[[str], None],
    together: int = 1,
    start: Callable[[Part], Started] = PartProcess,
    clock: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> dict[str, str]:
    """What became of each part. ``machine`` describes it; ``together``: how many engines its memory holds."""
    end = clock() + budget
    became: dict[str, str] = {}

    def report(name: str, what: str) -> None:
        became[name] = what
        tell(f"{name}: {what}")

    versions = {name: machine.get(name) for name in VERSIONS}
    keys = {part.name: {"sources": digest(part.sources), **versions} for part in parts}
    for part in parts:
        if not again and store.is_done(part.name, keys[part.name]):
            report(part.name, "done before")
        elif part.needs and find_spec(part.needs) is None:
            report(part.name, f"not run: {part.needs} is not installed")
    to_run = [part for part in parts if part.name not in became]
    side_by_side = SideBySide(together, start, clock, pause)
    try:
        for place, part in enumerate(to_run):
            if (left := end - clock()) < part.least:
                report(part.name, f"not run: {left:.0f} s are left and it needs {part.least:.0f}")
                continue
            tell(f"{part.name}: {part.about}")
            side_by_side.begin(to_run[place:])
            process = side_by_side.take(part, min(left, START_LIMIT))
            result = process.measure(max(0.0, min(end - clock(), part.limit)))
            date = datetime.now(UTC).isoformat(timespec="seconds")
            store.keep(part.name, {"key": keys[part.name], "machine": machine, "date": date, **result}, order)
            what = f"{result['status']}, {len(result['rows'])} rows, {result['seconds']:.0f} s"
            report(part.name, what if result["status"] == DONE else f"{what}\n{result['message']}")
            if result["status"] == INTERRUPTED:
                break
    finally:
        side_by_side.end()
    return became
