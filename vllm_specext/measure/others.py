"""How busy others keep the processor cores while something is measured: a busy machine's figures are no results."""

import os
import threading
import time
from types import TracebackType
from typing import Any, NamedTuple

BUSY = 0.1
"""Share of the cores above which figures of speed are in doubt."""
AT_START = 1.0
"""Seconds that are watched before anything is loaded."""
EVERY = 2.0
"""Seconds between two looks."""


class Look(NamedTuple):
    """Seconds since some start: of the clock, and of processor cores that anybody, and that this process and its
    children, kept busy."""

    clock: float
    all: float
    own: float


def look(cores: frozenset[int]) -> Look:
    """What the counters of ``cores`` say now. Time that a hypervisor gave to others counts as theirs."""
    import psutil

    per_core = psutil.cpu_times(percpu=True)
    used = 0.0
    for number in cores:
        times = per_core[number]
        # Guests' time is part of user's.
        guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
        used += sum(times) - guests - times.idle - getattr(times, "iowait", 0.0)
    return Look(time.monotonic(), used, _own(psutil))


def _own(psutil: Any) -> float:
    """Seconds of this process and of all that it started, those that have ended included."""
    me = psutil.Process()
    total = 0.0
    for process in (me, *me.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:  # it has just ended, and is its parent's now
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def share(before: Look, after: Look, cores: int) -> float:
    """Share of the cores' time between two looks that others took, 0 to 1."""
    room = (after.clock - before.clock) * cores
    others = (after.all - before.all) - (after.own - before.own)
    return min(1.0, max(0.0, others / room)) if room > 0 else 0.0


class Others:
    """Watches while it is entered, which takes ``AT_START`` seconds; ``told`` says what was seen."""

    def __init__(self) -> None:
        self._cores = frozenset(os.sched_getaffinity(0))
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._at_start = 0.0
        self._shares: list[float] = []

    def __enter__(self) -> "Others":
        before = look(self._cores)
        time.sleep(AT_START)
        self._first = look(self._cores)
        self._at_start = share(before, self._first, len(self._cores))
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end.set()
        self._thread.join()

    def _watch(self) -> None:
        last = self._first
        while not self._end.wait(EVERY):
            now = look(self._cores)
            self._shares.append(share(last, now, len(self._cores)))
            last = now

    def told(self) -> dict[str, float]:
        """Shares of the cores that others kept busy: before anything was loaded, on average while measuring, and the
        most between two looks."""
        shares = self._shares or [self._at_start]
        return {
            "at_start": round(self._at_start, 3),
            "while_measuring": round(sum(shares) / len(shares), 3),
            "highest": round(max(shares), 3),
        }


def is_busy(told: dict[str, float]) -> bool:
    return max(told["at_start"], told["while_measuring"]) > BUSY
