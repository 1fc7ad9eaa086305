"""What is counted while data are prepared, under the names in ``stats.json``."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tally:
    """Counters that every step of the preparation adds to."""

    read: Counter[str] = field(default_factory=Counter)
    """Rows of input, by what was made of them."""
    dropped: Counter[str] = field(default_factory=Counter)
    """Rows of input, and prepared rows, of which nothing was kept."""
    turns_left_out: Counter[str] = field(default_factory=Counter)
    """Turns with given answers that are not in the loss, in conversations of which others are."""
    ended_early: Counter[str] = field(default_factory=Counter)
    """Conversations that the target answered, but not to their end."""
    cut: Counter[str] = field(default_factory=Counter)
    """Rows that became shorter."""
