"""What is compared: rows, each of which differs from the reference row of its group by one thing.

No torch here, so that tables can be made without it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Second = Literal["embedding", "none", "hidden", "feature"]
"""What GRIFFIN's fusion reads beside its first result: the token's embedding once more, nothing, that first result
again, or the feature again. With nothing there is no second half, and no token-guided fusion."""


@dataclass(frozen=True)
class Row:
    name: str
    """In file names and on the command line."""
    label: str
    reference: str | None = None
    """The name of the row that this one is compared with; none of a reference row itself."""
    drafter: Literal["griffin", "eagle3"] = "griffin"
    align: int = 3
    """Best tokens in token-alignable training; 0: none, all passes learn from all positions."""
    passes: int = 3
    """The most passes over a batch; stage ``j`` makes ``j`` at the most."""
    feature_weight: float = 1.0
    second: Second = "embedding"
    two_heads: bool = True
    """A predict and a regress feature, or one feature for both."""
    turn: int = 0
    """Rows of an earlier turn are trained first, with all seeds."""


ROWS = (
    Row("eagle3", "EAGLE-3", drafter="eagle3", align=0),
    Row("eagle3-tat", "EAGLE-3 with token-alignable training", "eagle3", drafter="eagle3"),
    Row("griffin", "GRIFFIN", turn=1),
    Row("griffin-no-tat", "without token-alignable training", "griffin", align=0, turn=1),
    Row("griffin-no-tgf", "without token-guided fusion", "griffin", second="none", turn=1),
    Row("griffin-no-feature-loss", "without the feature loss", "griffin", feature_weight=0.0, turn=1),
    Row("griffin-1-pass", "one pass", "griffin", passes=1, turn=2),
    Row("griffin-2-passes", "one pass, then two", "griffin", passes=2, turn=2),
    Row("griffin-no-teh", "one output feature for both uses", "griffin", two_heads=False, turn=2),
    Row("griffin-top-1", "alignment by the best token", "griffin", align=1, turn=3),
    Row("griffin-top-10", "alignment by the 10 best tokens", "griffin", align=10, turn=3),
    Row("griffin-hidden", "fusion's second input: its first result", "griffin", second="hidden", turn=3),
    Row("griffin-feature", "fusion's second input: the feature", "griffin", second="feature", turn=3),
)
BY_NAME = {row.name: row for row in ROWS}
SEEDS = 3


def in_turns(rows: Sequence[Row], seeds: int) -> list[tuple[Row, int]]:
    """Rows with seeds in the order in which they are trained: at any time, the rows of a turn have as many seeds, give
    or take one."""
    turns = sorted({row.turn for row in rows})
    return [(row, seed) for turn in turns for seed in range(seeds) for row in rows if row.turn == turn]
