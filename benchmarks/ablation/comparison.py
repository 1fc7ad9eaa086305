"""Is a row's figure another one than its reference's? Counts of the same prompts and seeds, drawn again in pairs."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
"""``[seeds, prompts, 2]``: verifications, and drafted tokens that they accepted."""

RESAMPLES = 10_000
SMALLEST = 0.05
"""Differences below are not told from none: with these prompts the standard error of a figure is about half of it."""


@dataclass(frozen=True)
class Difference:
    """In tokens per verification, with the bounds of 95% of what other prompts and seeds would have given, as far as
    these tell."""

    value: float
    low: float
    high: float

    @property
    def seen(self) -> bool:
        return abs(self.value) >= SMALLEST and not self.low <= 0 <= self.high


def tokens_per_verification(counts: Counts) -> float:
    verifications, accepted = counts.sum(axis=(0, 1))
    return float(1 + accepted / verifications)


def interval(counts: Counts) -> tuple[float, float]:
    """Bounds of 95% of the tokens per verification of prompts and seeds drawn from these with replacement."""
    return _bounds(_drawn(counts, _times(counts)))


def difference(counts: Counts, reference: Counts) -> Difference:
    """Both for the same seeds and prompts, in the same order. In every draw both have the same."""
    if counts.shape != reference.shape:
        raise ValueError(f"counts are {counts.shape}, but the reference's are {reference.shape}; expected the same.")
    times = _times(counts)
    low, high = _bounds(_drawn(counts, times) - _drawn(reference, times))
    return Difference(tokens_per_verification(counts) - tokens_per_verification(reference), low, high)


Times = tuple[NDArray[np.int64], NDArray[np.int64]]


def _times(counts: Counts) -> Times:
    """How often each seed ``[draws, seeds]`` and each prompt ``[draws, prompts]`` is drawn; always the same."""
    random = np.random.default_rng(0)
    seeds, prompts = (random.multinomial(n, np.full(n, 1 / n), RESAMPLES) for n in counts.shape[:2])
    return seeds, prompts


def _drawn(counts: Counts, times: Times) -> NDArray[np.float64]:
    """``[draws]`` tokens per verification."""
    by_prompt = np.tensordot(times[0], counts, axes=1)
    verifications, accepted = np.einsum("np,npc->cn", times[1], by_prompt)
    drawn: NDArray[np.float64] = 1 + accepted / verifications
    return drawn


def _bounds(values: NDArray[np.float64]) -> tuple[float, float]:
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)
