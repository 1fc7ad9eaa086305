"""The acceptance of drafts as it goes, and whether it has fallen since it was first known."""

WINDOW = 100
"""Verifications that the moving average looks back on, and after which it is known."""

FALL = 0.1
"""Share of the first average that may be lost."""


class AcceptanceWatch:
    """A moving average of tokens accepted per level drafted; accepted siblings count, so it may pass 1."""

    def __init__(self) -> None:
        self._accepted = self._drafted = 0.0
        self._count = 0
        self._first: float | None = None

    def note(self, accepted: int, drafted: int) -> None:
        """A verification; one without a draft says nothing."""
        if drafted == 0:
            return
        self._count = min(self._count + 1, WINDOW)
        # The plain mean of the first, then an exponential one.
        self._accepted += (accepted - self._accepted) / self._count
        self._drafted += (drafted - self._drafted) / self._count
        if self._first is None and self._count == WINDOW:
            self._first = self.rate

    @property
    def rate(self) -> float | None:
        return self._accepted / self._drafted if self._count else None

    @property
    def has_fallen(self) -> bool:
        """By more than a tenth of what it was when it was first known."""
        return self._first is not None and self.rate is not None and self.rate < (1 - FALL) * self._first
