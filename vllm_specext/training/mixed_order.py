"""The order of training rows that lie in groups: random, and yet a few groups at a time."""

import random
from collections.abc import Sequence

WINDOW = 4
"""Groups whose rows are mixed."""


def mixed_order(groups: Sequence[Sequence[int]], seed: int, epoch: int, window: int = WINDOW) -> list[int]:
    """The numbers of all rows, each once, as they come in this ``epoch``.

    Every epoch has the ``groups`` of rows in an order of its own. The rows of each ``window`` groups are mixed. The
    order follows from the arguments alone, in every process.
    """
    # A text as the seed gives the same order in every process.
    chooser = random.Random(f"{seed} {epoch}")
    shuffled = list(groups)
    chooser.shuffle(shuffled)
    order: list[int] = []
    for first in range(0, len(shuffled), window):
        mixed = [row for rows in shuffled[first : first + window] for row in rows]
        chooser.shuffle(mixed)
        order += mixed
    return order
