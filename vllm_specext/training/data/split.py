"""Which rows are kept for validation: about one in a hundred, whole conversations, the same ones every time.

Conversations with the same first user message are on the same side, so that no drafter is validated on what it has
learnt. Which side follows from the message's hash alone, as far as the sizes allow.
"""

from collections import Counter
from collections.abc import Sequence

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.row import Row

FEWEST, MOST, SHARE = 200, 1000, 100
"""Rows for validation: one in ``SHARE``, within these bounds."""

TINY = 10
"""But no more than one row in ``TINY``, where there are few."""


def split(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """``rows`` for training and for validation, each in their order. Neither is empty: ``ConfigurationError`` where all
    rows begin with the same message."""
    sizes = Counter(row.group for row in rows)
    if len(sizes) < 2:
        raise ConfigurationError(
            "all rows begin with the same user message, so that none can be kept for validation; expected at least two "
            "different conversations."
        )
    chosen = _chosen(sizes, wanted(len(rows)))
    train = [row for row in rows if row.group not in chosen]
    return train, [row for row in rows if row.group in chosen]


def wanted(rows: int) -> int:
    """How many of ``rows`` are for validation."""
    return max(1, min(max(FEWEST, rows // SHARE), MOST, rows // TINY))


def _chosen(sizes: Counter[str], most: int) -> set[str]:
    chosen: set[str] = set()
    # The groups are hashes: their order has nothing to do with what is said.
    for group in sorted(sizes):
        if sizes[group] <= most:
            chosen.add(group)
            most -= sizes[group]
    return chosen or {min(sizes, key=lambda group: (sizes[group], group))}
