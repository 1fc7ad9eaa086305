"""How good the drafts are at the moment, and whether they have become worse since that was first known.

The watch looks at the chain's tokens that verification reached, and counts the share of right ones. Accepted tokens per
level would say less: accepted alternatives make up for a chain that went wrong, and so hide that the text has changed.
"""

from typing import NamedTuple

AVERAGED_VERIFICATIONS = 100
"""Verifications in the moving average; the average is known after so many."""

FALL = 0.1
"""The share of the first average that may be lost."""


class DraftOutcome(NamedTuple):
    """What verification found of one draft."""

    accepted: int
    """Accepted tokens, alternatives included."""
    depth: int
    """The depth of the draft: the levels of its chain."""
    right: int
    """Right tokens of the chain, from its start to the first wrong one."""
    reached: int
    """Tokens of the chain that verification reached: the right ones and the first wrong one."""


class AcceptanceWatch:
    """A moving average of the share of right tokens in chains."""

    def __init__(self) -> None:
        self._right = self._reached = 0.0
        self._count = 0
        self._first: float | None = None

    def note(self, outcome: DraftOutcome) -> None:
        """Count the draft in. An outcome without a draft says nothing."""
        if outcome.reached == 0:
            return
        self._count = min(self._count + 1, AVERAGED_VERIFICATIONS)
        # The plain mean of the first, then an exponential one.
        self._right += (outcome.right - self._right) / self._count
        self._reached += (outcome.reached - self._reached) / self._count
        if self._first is None and self._count == AVERAGED_VERIFICATIONS:
            self._first = self.rate

    @property
    def rate(self) -> float | None:
        return self._right / self._reached if self._count else None

    @property
    def has_fallen(self) -> bool:
        """Whether the average is more than a tenth below what it was when it was first known."""
        return self._first is not None and self.rate is not None and self.rate < (1 - FALL) * self._first
