"""The pages of a drafter's own cache, and which request has which of them."""

from collections.abc import Iterable
from math import ceil

NULL_PAGE = 0
"""The page to which rows of no request are written."""


class PagePool:
    """Gives ``pages`` of ``page_size`` tokens, the null page among them, to requests by their slots."""

    def __init__(self, pages: int, page_size: int) -> None:
        self.page_size = page_size
        self._free = [page for page in reversed(range(pages)) if page != NULL_PAGE]
        self._own: dict[int, list[int]] = {}

    def take(self, slot: int, tokens: int, waiting: Iterable[int] = ()) -> list[int] | None:
        """Give the request in ``slot`` pages after those it has, so that ``tokens`` fit, and return the new ones.

        Where too few are free, the requests in the slots ``waiting`` lose theirs, one after the other. Where that is
        not enough, the request keeps what it has, and ``None`` is returned."""
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
        """Take all pages back from the request in ``slot``."""
        self._free += self._own.pop(slot, [])

    def count(self, slot: int) -> int:
        """How many pages the request in ``slot`` has."""
        return len(self._own.get(slot, []))
