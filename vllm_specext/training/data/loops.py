"""Where a text begins to go round in circles, which every drafter predicts without effort.

Only repeats without anything between them count. `vllm_specext.measure.loops`, which is for short continuations, calls
any eight tokens a loop that occur three times: so are 86 % of all pieces of 1000 tokens of Python's own library, and
none of them by the rule here.
"""

from collections.abc import Sequence

import numpy as np

LONGEST, TIMES, FEWEST = 128, 4, 48
"""A loop is at most ``LONGEST`` tokens, ``TIMES`` times or more in a row, and ``FEWEST`` tokens or more in all."""

HASH = np.uint64(0x9E3779B97F4A7C15)

GRAM = 16
"""In a loop at least one of the pieces of so many tokens occurs three times: a loop of ``n`` tokens, period ``p``, has
``n - 15`` of them, and ``p`` different ones at the most."""


def before_loop(tokens: Sequence[int] | np.ndarray) -> int:
    """The number of ``tokens`` before the first repeat of a loop; all of them where there is none."""
    ids = np.asarray(tokens)
    found = len(ids)
    if not _may_loop(ids):
        return found
    for period in range(1, min(LONGEST, len(ids) // 2) + 1):
        same = max((TIMES - 1) * period, FEWEST - period)
        differs = np.cumsum(ids[period:] != ids[:-period])
        before = np.concatenate(([0], differs))
        # Positions from which on `same` tokens in a row are those of one period earlier.
        (starts,) = np.nonzero(before[same:] == before[:-same])
        if len(starts):
            found = min(found, int(starts[0]) + period)
    return found


def _may_loop(ids: np.ndarray) -> bool:
    """Whether a piece of ``GRAM`` tokens seems to occur three times. This decides nearly all rows, and quickly."""
    if len(ids) < FEWEST:
        return False
    hashes = np.zeros(len(ids) - GRAM + 1, dtype=np.uint64)
    for i in range(GRAM):
        hashes = hashes * HASH + ids[i : len(ids) - GRAM + 1 + i].astype(np.uint64)
    hashes.sort()
    return bool((hashes[2:] == hashes[:-2]).any())
