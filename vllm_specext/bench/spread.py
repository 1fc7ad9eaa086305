"""Which figures of speed are no results: those whose rounds differ widely, and those of one round."""

from vllm_specext.bench.results import Row

WIDE = 0.1
"""Distance of the lowest from the highest round, as a share of the median, above which a figure is unsure."""


def width(row: Row) -> float:
    """How far the rounds' speed-ups of ``row`` are apart, as a share of their median. 0 without a speed-up."""
    if not row.get("speedup"):
        return 0.0
    return float((row["speedup_highest"] - row["speedup_lowest"]) / row["speedup"])


def is_ratio_unsure(row: Row) -> bool:
    """`is_unsure` of the speed relative to the same engine without drafts."""
    ratio = row.get("ratio_to_no_nodes")
    return bool(ratio) and (is_one_round(row) or (row["highest_ratio"] - row["lowest_ratio"]) / ratio > WIDE)


def is_one_round(row: Row) -> bool:
    """Whether ``row`` has a speed-up of which nobody knows how far it would be from another one."""
    return "speedup" in row and row.get("rounds", 0) < 2


def is_unsure(row: Row) -> bool:
    return is_one_round(row) or width(row) > WIDE
