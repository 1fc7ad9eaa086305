"""What rows have to be to be kept: short enough, without loops, with something to learn, and no duplicates."""

import hashlib
from collections.abc import Iterable

import numpy as np

from vllm_specext.training.data.loops import before_loop
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.row import Row
from vllm_specext.training.data.tally import Tally

MAX_LENGTH = "max_length"
"""The name of that cut in ``stats.json``; the other is `Reason.LOOP`."""


class Hygiene:
    """Cleans one row after the other, and remembers those that it let through. ``tally`` counts the others."""

    def __init__(self, max_length: int, tally: Tally) -> None:
        self.max_length = max_length
        self.tally = tally
        self.seen: set[bytes | str] = set()
        """Hashes of the tokens, and keys."""

    def cleaned(self, rows: Iterable[Row]) -> list[Row]:
        """``rows`` as they are kept."""
        kept = []
        for row in rows:
            clean = self._clean(row)
            if isinstance(clean, Reason):
                self.tally.dropped[clean] += 1
            else:
                kept.append(clean)
        return kept

    def _clean(self, row: Row) -> Row | Reason:
        fitting = row.first(min(len(row), self.max_length))
        clean = fitting.first(loop_start(fitting))
        if not clean.loss_mask.any():
            return Reason.NO_LOSS_TOKEN
        digest = hashlib.sha256(clean.token_ids.tobytes()).digest()
        # Features are found by the key, so that of two rows with the same only one can be kept.
        if not self.seen.isdisjoint((digest, row.key)):
            return Reason.DUPLICATE
        self.seen |= {digest, row.key}
        self.tally.cut[MAX_LENGTH] += len(fitting) < len(row)
        self.tally.cut[Reason.LOOP] += len(clean) < len(fitting)
        return clean


def loop_start(row: Row) -> int:
    """The number of tokens before a loop in an answer. What a user repeats is no loop."""
    for start, end in spans(row.loss_mask):
        before = before_loop(row.token_ids[start:end])
        if before < end - start:
            return start + before
    return len(row)


def spans(mask: np.ndarray) -> list[tuple[int, int]]:
    """First and last, exclusive, of all places in a row where ``mask`` is true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(start), int(end)) for start, end in edges.reshape(-1, 2)]
