"""A batch's requests, as many at a time as a pass of a drafter has room for."""

from collections.abc import Iterator


def request_parts(requests: int, rows: int, most: int) -> Iterator[slice]:
    """Slices of so many ``requests``, with a pass of at most ``most`` rows for each. A request has this many ``rows``;
    one that has more than ``most`` gets a pass of its own."""
    together = max(1, most // max(1, rows))
    for first in range(0, requests, together):
        yield slice(first, min(first + together, requests))
