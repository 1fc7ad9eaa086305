"""Index arithmetic for batches whose requests own different numbers of tokens.

The Triton kernels start one program per request; the bodies here cover the whole batch with one numpy expression, so
they need, for every token, the request that owns it and its place inside that request.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.integer]


def lengths_between(starts: IntArray) -> IntArray:
    """Return the differences `[R]` of neighbouring entries of `starts` `[R + 1]`: ``np.diff`` without its overhead."""
    return starts[1:] - starts[:-1]


def rows_and_offsets(lengths: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for each of ``sum(lengths)`` tokens, its row `[T]` and its offset inside that row `[T]`."""
    row = np.repeat(np.arange(len(lengths)), lengths)
    first = np.cumsum(lengths) - lengths
    return row, np.arange(len(row)) - first[row]
