"""The table of what was found, for a terminal and for the documents."""

from collections.abc import Sequence
from typing import NamedTuple

from benchmarks.ablation.comparison import Difference, difference, interval, tokens_per_verification
from benchmarks.ablation.rows import BY_NAME, Row
from benchmarks.ablation.runs import Runs, counts_of, seeds_of

HEADER = ("trained", "seeds", "tokens per verification", "of each seed", "difference", "seen")
NOT_RUN = "not run"
ONE_SEED = "one seed"
"""In the place of a verdict: a single seed says nothing of others."""


class Figures(NamedTuple):
    """Of one row. ``low`` and ``high`` are its 95% interval, ``of_seeds`` the tokens per verification of each seed;
    the difference is over the ``seeds`` that the reference has too."""

    row: Row
    value: float
    low: float
    high: float
    of_seeds: tuple[float, ...]
    difference: Difference | None
    seeds: int


def figures(runs: Runs, row: Row) -> Figures | None:
    """``None`` where the row has not been run."""
    seeds = seeds_of(runs, row)
    if not seeds:
        return None
    counts = counts_of(runs, row, seeds)
    compared, both = None, []
    if row.reference is not None:
        reference = BY_NAME[row.reference]
        both = [seed for seed in seeds if seed in seeds_of(runs, reference)]
        if both:
            compared = difference(counts_of(runs, row, both), counts_of(runs, reference, both))
    each = tuple(tokens_per_verification(counts[i : i + 1]) for i in range(len(seeds)))
    return Figures(row, tokens_per_verification(counts), *interval(counts), each, compared, len(both))


def cells(runs: Runs, row: Row) -> list[str]:
    """In the order of `HEADER`."""
    found = figures(runs, row)
    if found is None:
        return [row.label, "0", NOT_RUN, "", "", ""]
    value = f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"
    each = ", ".join(f"{one:.2f}" for one in found.of_seeds)
    return [row.label, str(len(found.of_seeds)), value, each, *compared(found)]


def compared(found: Figures) -> tuple[str, str]:
    """The difference and what is seen of it."""
    if found.row.reference is None:
        return "reference", ""
    if found.difference is None:
        return NOT_RUN, ""
    value, low, high = found.difference.value, found.difference.low, found.difference.high
    return f"{value:+.2f} ({low:+.2f} to {high:+.2f})", verdict(found)


def verdict(found: Figures) -> str:
    """Of a row that has a difference."""
    assert found.difference is not None
    if found.seeds < 2:
        return ONE_SEED
    if not found.difference.seen:
        return "none seen"
    return "better" if found.difference.value > 0 else "worse"


def lines(runs: Runs, rows: Sequence[Row]) -> list[list[str]]:
    return [cells(runs, row) for row in rows]
