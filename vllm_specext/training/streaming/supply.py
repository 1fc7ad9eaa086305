"""The target's side: features are made before they are needed, and removed when they are not any more."""

from collections.abc import Callable, Sequence
from pathlib import Path

from vllm_specext.training.data.row import Row
from vllm_specext.training.mixed_order import WINDOW
from vllm_specext.training.streaming.ring import Ring
from vllm_specext.training.streaming.visits import Visit, Visits

ROOM = 3 * WINDOW
"""Blocks whose features are there at the same time: those of a window, those of the next, and some that rows which
found no place in a pack hold up."""

Write = Callable[[Path, Sequence[Row]], list[str]]
"""Writes the features of rows to a path, or to files beside it, and returns the keys of those that are missing."""


class Supply:
    """Features of ``rows`` for ``processes`` that train, which wait for at most the next ``ahead`` packs."""

    def __init__(
        self, visits: Visits, rows: Sequence[Row], ring: Ring, write: Write, processes: int, ahead: int
    ) -> None:
        self.visits, self.rows, self.ring, self.write = visits, rows, ring, write
        self.processes, self.ahead = processes, ahead
        self._there: dict[int, Visit] = {}
        """By the number of the visit."""

    def turn(self) -> bool:
        """Remove what is not needed any more, and make the next block's features if they have room or somebody waits
        for them. Whether any were made."""
        at = self.ring.slowest(self.processes)
        if at is None:
            return False
        for number in [number for number, visit in self._there.items() if visit.last < at]:
            self.ring.remove(number)
            del self._there[number]
        visit = next(visit for visit in self.visits.needed_from(at) if visit.number not in self._there)
        if len(self._there) >= ROOM and visit.first > at + self.ahead:
            return False
        missing = self.write(self.ring.shard(visit.number), [self.rows[row] for row in self.visits.blocks[visit.block]])
        self.ring.publish(visit.number, missing)
        self._there[visit.number] = visit
        return True
