"""Loops: continuations that go round in circles, which every drafter predicts without effort."""

from collections import Counter
from collections.abc import Sequence

SPAN, TIMES = 8, 3


def before_loop(tokens: Sequence[int]) -> int:
    """The number of ``tokens`` before the loop, which begins where any ``SPAN`` tokens in a row occur for the
    ``TIMES``-th time."""
    seen: Counter[tuple[int, ...]] = Counter()
    for end in range(SPAN, len(tokens) + 1):
        span = tuple(tokens[end - SPAN : end])
        seen[span] += 1
        if seen[span] == TIMES:
            return end - SPAN
    return len(tokens)


def is_loop(tokens: Sequence[int]) -> bool:
    return before_loop(tokens) < len(tokens)
