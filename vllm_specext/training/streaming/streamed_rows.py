"""The rows of a training whose features the target computes beside it."""

from collections.abc import Sequence
from typing import Any

from safetensors import safe_open

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.rows import FeatureRow
from vllm_specext.training.shards import Shard, read_row, read_shard, readable
from vllm_specext.training.streaming.ring import Ring
from vllm_specext.training.streaming.visits import Visit, Visits

Place = tuple[Shard, Any, int]
"""A shard, its open file, and the number of a row in it."""


class StreamedRows:
    """A ``RowSource`` whose rows are waited for. It is read in the order of packs, as a training does.

    ``keys`` are the names of the rows, ``process`` is this training process, ``target`` tells the target apart. Rows
    that are read once more, after an interruption or in another epoch, were computed once more: they may differ in
    their last bits.
    """

    def __init__(self, visits: Visits, keys: Sequence[str], ring: Ring, process: int, target: str) -> None:
        if not keys:
            raise ConfigurationError("the data have no rows to train on; expected 1 or more.")
        self.visits, self.keys, self.ring, self.process, self.target = visits, keys, ring, process, target
        self._open: dict[int, tuple[Visit, dict[str, Place]]] = {}
        """By the number of the visit."""

    @property
    def lengths(self) -> list[int]:
        return self.visits.lengths

    def order(self, epoch: int) -> list[int]:
        return self.visits.order(epoch)

    def read(self, rows: Sequence[int], epoch: int = 0) -> list[FeatureRow]:
        """These rows, which are a pack of this ``epoch``. What comes before the pack is let go."""
        now = self.visits.epoch(epoch)
        pack = now.pack_of[rows[0]]
        self.ring.note(self.process, pack)
        self._open = {number: one for number, one in self._open.items() if one[0].last >= pack}
        return [self._read(now.of_block[self.visits.block_of[row]], self.keys[row]) for row in rows]

    def _read(self, visit: Visit, key: str) -> FeatureRow:
        if visit.number not in self._open:
            self._open[visit.number] = visit, self._places(visit)
        shard, file, row = self._open[visit.number][1][key]
        return read_row(shard, file, row)

    def _places(self, visit: Visit) -> dict[str, Place]:
        found: dict[str, Place] = {}
        for path in self.ring.wait(visit.number):
            shard = read_shard(path, self.target)
            with readable(path):
                file = safe_open(path, framework="pt")
            found |= {key: (shard, file, row) for row, key in enumerate(shard.keys)}
        return found
