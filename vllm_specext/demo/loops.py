"""What counts as a loop: a continuation that goes round in circles, which every drafter predicts without effort."""

from collections import Counter
from collections.abc import Sequence

SPAN, TIMES = 8, 3


def before_loop(tokens: Sequence[int]) -> int:
    """How many ``tokens`` come before the ``TIMES``-th occurrence of any ``SPAN`` in a row, where the loop begins."""
    seen: Counter[tuple[int, ...]] = Counter()
    for end in range(SPAN, len(tokens) + 1):
        span = tuple(tokens[end - SPAN : end])
        seen[span] += 1
        if seen[span] == TIMES:
            return end - SPAN
    return len(tokens)


def is_loop(tokens: Sequence[int]) -> bool:
    return before_loop(tokens) < len(tokens)
