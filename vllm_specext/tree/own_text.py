"""A place in the text itself, for prompt lookup: where what was said last stands earlier, it may go on as it did there.

Of several such places that one is taken which most of the last tokens speak for. Where as many speak for each, it is
the first one after the place where the thread was lost, as in the rewriting of a file, else the newest.
"""

from collections.abc import Iterable

import numpy as np

from vllm_specext.tree.place import GROWTH, Place

LONGEST = 32
"""Tokens that are compared at the most."""


class OwnText(Place):
    """Follows one text, whose tokens are given ones as soon as they are there."""

    def __init__(self, text: np.ndarray, match: int) -> None:
        """``text``: token ids ``[n]`` of a prompt. ``match``: as for ``Place``."""
        self._room = np.ascontiguousarray(text, dtype=np.int32)
        self._matched = match
        super().__init__(self._room, match)
        self._next = None
        self._take_up()

    @property
    def evidence(self) -> int:
        return self._matched + self._followed

    def draft(self, count: int) -> np.ndarray:
        """As ``Place`` does. Where the text ends before, it is expected to go round in a circle."""
        found, most = super().draft(count), min(count, GROWTH * self.evidence)
        return np.resize(found, most) if len(found) else found

    def follow(self, tokens: Iterable[int]) -> None:
        """Go on with ``tokens`` of the text, in any number. A lost thread is looked for once, after all of them."""
        for token in tokens:
            self._hold(token)
            self._take_in(token)
        if self._next is None:
            self._take_up()

    def _take_in(self, token: int) -> None:
        count = len(self._given)
        if count == len(self._room):
            self._room = np.empty(count + count // 8 + 64, dtype=np.int32)
            self._room[:count] = self._given
        self._room[count] = token
        self._given = self._room[: count + 1]

    def _take_up(self) -> None:
        text, matched = self._given, 1
        if len(text) < self._match:
            return
        ends = np.flatnonzero(text[:-1] == text[-1]) + 1
        while matched < LONGEST and len(longer := ends[ends > matched]):
            longer = longer[text[longer - matched - 1] == text[-matched - 1]]
            if not len(longer):
                break
            ends, matched = longer, matched + 1
        if matched >= self._match and len(ends):
            later = int(np.searchsorted(ends, self._lost_at)) if self._lost_at else len(ends)
            self._next = self._taken_up = int(ends[later if later < len(ends) else -1])
            self._followed, self._matched = 0, matched
