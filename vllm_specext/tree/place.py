"""A place in tokens that were given in advance, such as the predicted answer to an edit.

While the text goes on as the given tokens say, the thread is held, and the next tokens are the draft. A token that was
not foretold breaks it. It is taken up again where the text's last few tokens stand among the given ones: at the first
such place that is not before the one where it was lost, else at the first of all. Only the text that follows can tell
whether that was the right place, so that drafts from it are short at first.
"""

from collections.abc import Iterable

import numpy as np

GROWTH = 2
"""A draft is at most so many times as long as what speaks for its place: the tokens by which it was found, and those
that it foretold since. A place that was chance costs little then, and a change of the text two or three passes more."""


class Place:
    """Follows one text. ``foretold`` counts the tokens of it that were the next given ones."""

    def __init__(self, given: np.ndarray, match: int) -> None:
        """``given``: token ids ``[n]``, kept as int32. ``match``: how many of the text's last tokens have to stand
        together to take the thread up, 1 or more. The text is expected to begin with the first given token."""
        if match < 1:
            raise ValueError(f"match is {match}, but at least 1 token has to stand in the given ones.")
        self._given = np.ascontiguousarray(given, dtype=np.int32)
        self._match = match
        self._next: int | None = 0
        self._taken_up = self._lost_at = 0
        self._followed = len(self._given)  # at its beginning the text is trusted
        self._tail: list[int] = []
        self.foretold = 0

    def follow(self, tokens: Iterable[int]) -> None:
        """Go on with ``tokens`` of the text, in any number."""
        for token in tokens:
            self._tail = [*self._tail[1 - self._match or len(self._tail) :], token]
            if not self._hold(token):
                self._take_up()

    @property
    def evidence(self) -> int:
        """Tokens that speak for the place: those by which it was found, and those that it foretold since."""
        return self._match + self._followed

    def draft(self, count: int) -> np.ndarray:
        """The next given tokens, int32, at most ``count``; none while the thread is lost."""
        if self._next is None:
            return self._given[:0]
        return self._given[self._next : self._next + min(count, GROWTH * self.evidence)]

    def _hold(self, token: int) -> bool:
        """Whether the thread is held with the next ``token`` of the text."""
        if self._next is not None and self._next < len(self._given) and self._given[self._next] == token:
            self._next += 1
            self._followed += 1
            self.foretold += 1
            return True
        if self._next is not None:
            # A place that nothing followed was chance: what comes next is looked for from the one before.
            if self._next > self._taken_up:
                self._lost_at = self._next
            self._next = None
        return False

    def _take_up(self) -> None:
        if len(self._tail) < self._match:
            return
        # Ends of the tail in the given tokens; after the last of these nothing would follow.
        ends = np.flatnonzero(self._given[self._match - 1 : -1] == self._tail[-1]) + self._match
        for back in range(2, self._match + 1):
            ends = ends[self._given[ends - back] == self._tail[-back]]
        if len(ends):
            later = int(np.searchsorted(ends, self._lost_at))
            self._next = self._taken_up = int(ends[later if later < len(ends) else 0])
            self._followed = 0
