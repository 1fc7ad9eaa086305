"""Who has which pages of a drafter's own cache."""

from collections.abc import Iterable
from math import ceil

NULL_PAGE = 0
"""Rows of no request are written there."""


class PagePool:
    """``pages`` of ``page_size`` tokens, the null page among them, for requests by slot."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self._free = [page for page in reversed(range(pages)) if page != NULL_PAGE]
        self._own: dict[int, list[int]] = {}

    def take(self, slot: int, tokens: int, waiting: Iterable[int] = ()) -> list[int] | None:
        """The pages that the request in ``slot`` gets behind those it has, so that ``tokens`` fit. Where none are free,
        the requests in the slots ``waiting`` lose theirs, one after the other. ``None`` where that is not enough, and
        the request keeps what it has."""
        own = self._own.get(slot, [])
        missing = max(0, ceil(tokens / self.page_size) - len(own))
        for other in waiting:
            if len(self._free) >= missing:
                break
            if other != slot:
                self.release(other)
        if len(self._free) < missing:
            return None
        new = [self._free.pop() for _ in range(missing)]
        self._own[slot] = own + new
        return new

    def release(self, slot: int) -> None:
        self._free += self._own.pop(slot, [])

    def count(self, slot: int) -> int:
        """Pages of the request in ``slot``."""
        return len(self._own.get(slot, []))
