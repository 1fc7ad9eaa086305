"""How well drafts do as it goes, and whether that has fallen since it was first known.

What is watched is the share of the chain's tokens that were right, of those that verification reached. Tokens accepted
per level say less: accepted alternatives make up for a chain that went wrong, and hide that the text has changed.
"""

from typing import NamedTuple

WINDOW = 100
"""Verifications that the moving average looks back on, and after which it is known."""

FALL = 0.1
"""Share of the first average that may be lost."""


class Verification(NamedTuple):
    """Of one draft."""

    accepted: int
    """Tokens, alternatives included."""
    levels: int
    """Drafted."""
    right: int
    """Tokens of the chain from its start, up to the first wrong one."""
    reached: int
    """Tokens of the chain of which the target said whether they are right: those and the first wrong one."""


class AcceptanceWatch:
    """A moving average of the share of right tokens."""

    def __init__(self) -> None:
        self._right = self._reached = 0.0
        self._count = 0
        self._first: float | None = None

    def note(self, verification: Verification) -> None:
        """One without a draft says nothing."""
        if verification.reached == 0:
            return
        self._count = min(self._count + 1, WINDOW)
        # The plain mean of the first, then an exponential one.
        self._right += (verification.right - self._right) / self._count
        self._reached += (verification.reached - self._reached) / self._count
        if self._first is None and self._count == WINDOW:
            self._first = self.rate

    @property
    def rate(self) -> float | None:
        return self._right / self._reached if self._count else None

    @property
    def has_fallen(self) -> bool:
        """By more than a tenth of what it was when it was first known."""
        return self._first is not None and self.rate is not None and self.rate < (1 - FALL) * self._first
