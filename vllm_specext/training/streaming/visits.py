"""Which features a training needs, from when to when.

Rows lie in blocks, and features of a whole block are computed at once. That a training needs a block in an epoch is a
visit of that block. All of this follows from the rows' lengths, the seed and the size of packs, so that the training
and the target's process compute the same, and nobody has to tell the other.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from vllm_specext.training.mixed_order import mixed_order
from vllm_specext.training.packs import pack_order

BLOCK_TOKENS = 2**16
"""The most tokens of a block. Of a target with 4096 numbers for each, that is half a gigabyte."""


@dataclass(frozen=True)
class Visit:
    number: int
    """From 0, over all epochs, in the order in which they are needed."""
    block: int
    first: int
    """The number of the first pack, over all epochs, that has rows of the block."""
    last: int
    """The number of the last one."""


@dataclass(frozen=True)
class EpochVisits:
    pack_of: tuple[int, ...]
    """The number of the pack that each row is in, over all epochs."""
    visits: tuple[Visit, ...]
    of_block: dict[int, Visit]


def blocks_of(lengths: Sequence[int], most: int) -> list[range]:
    """Rows one after the other in blocks of at most ``most`` tokens, or of one row that is longer."""
    starts, tokens = [0], 0
    for row, length in enumerate(lengths):
        if tokens and tokens + length > most:
            starts.append(row)
            tokens = 0
        tokens += length
    return [range(start, stop) for start, stop in zip(starts, [*starts[1:], len(lengths)], strict=True)]


class Visits:
    """Of rows with these ``lengths``, in packs of ``tokens`` tokens, in the order of ``seed``."""

    def __init__(self, lengths: Sequence[int], tokens: int, seed: int, most: int = BLOCK_TOKENS) -> None:
        self.lengths, self.tokens, self.seed = list(lengths), tokens, seed
        self.blocks = blocks_of(lengths, most)
        self.block_of = [number for number, rows in enumerate(self.blocks) for _ in rows]
        self._known: dict[int, EpochVisits] = {}
        """The last two epochs that were asked for."""
        self._starts = [(0, 0)]
        """The numbers of the first pack and of the first visit, of each epoch that follows a known one."""

    def order(self, epoch: int) -> list[int]:
        """The numbers of all rows as they come in this ``epoch``."""
        return mixed_order(self.blocks, self.seed, epoch)

    def epoch(self, number: int) -> EpochVisits:
        """The visits of this epoch, which counts from 0."""
        while len(self._starts) <= number:
            self._find(len(self._starts) - 1)
        return self._known.get(number) or self._find(number)

    def epoch_of(self, pack: int) -> int:
        """The epoch that has this ``pack``, which counts over all epochs."""
        while self._starts[-1][0] <= pack:
            self._find(len(self._starts) - 1)
        return bisect_right(self._starts, pack, key=itemgetter(0)) - 1

    def needed_from(self, pack: int) -> Iterator[Visit]:
        """Those that ``pack`` or a later one needs, in their order, without an end."""
        epoch = self.epoch_of(pack)
        while True:
            yield from (visit for visit in self.epoch(epoch).visits if visit.last >= pack)
            epoch += 1

    def _find(self, number: int) -> EpochVisits:
        first_pack, first_visit = self._starts[number]
        packs = pack_order(self.lengths, self.order(number), self.tokens)
        pack_of = [0] * len(self.lengths)
        spans: dict[int, list[int]] = {}
        for pack, rows in enumerate(packs, start=first_pack):
            for row in rows:
                pack_of[row] = pack
                # Packs rise, so that the last one that is noted is the last.
                spans.setdefault(self.block_of[row], [pack, pack])[1] = pack
        visits = tuple(Visit(n, block, *span) for n, (block, span) in enumerate(spans.items(), start=first_visit))
        found = EpochVisits(tuple(pack_of), visits, {visit.block: visit for visit in visits})
        if number + 1 == len(self._starts):
            self._starts.append((first_pack + len(packs), first_visit + len(visits)))
        self._known = {n: known for n, known in self._known.items() if n == number - 1} | {number: found}
        return found
