"""Whether drafting pays at a load, found out by trying: tokens per second with and without drafts.

Loads are ranges of running requests: 1, 2-3, 4-7 and so on. Each range begins with drafts. After a while both ways are
tried, in short bursts that alternate, so that a machine which is slow for a moment is slow for both. How long a step
takes shows in a few dozen of them; how many tokens it gives varies so much that a longer memory of verifications is
asked for that, and the way is changed only where the difference is larger than chance explains. The comparison is
repeated, less and less often while nothing changes, because what is drafted, asked and computed beside it does change.

Counts steps and looks at no clock of its own. The first steps of a burst are not counted: a step verifies what an
earlier one has drafted, and with asynchronous scheduling one or two more are under way.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import sqrt
from statistics import fmean, median, stdev

BURST = 16
"""Steps that are counted at a time."""

BURSTS = 4
"""Bursts of a comparison. The first of them goes the way that is not in use at the moment."""

SETTLING = 4
"""Steps of a burst that are not counted."""

FIRST_WAIT, LONGEST_WAIT = 64, 4096
"""Steps before a range's first comparison, and at most between two. The least time is twice the first, and trying the
slower way costs two bursts."""

MEMORY = 256
"""Verifications whose tokens are remembered."""

MARGIN = 0.03
"""The other way must be faster by this share and, beyond it, by twice the standard error of the mean of the tokens."""

OUTLIER = 4.0
"""Multiple of the median beyond which a step does not count: something else took the time (a compilation, another
process)."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a comparison that changed something."""

    first: int
    last: int
    """Running requests of the range."""
    drafts: bool
    speed: float
    """Speed with drafts relative to that without."""


@dataclass
class _Range:
    drafts: bool = True
    """Whether steps draft when nothing is tried."""
    burst: int = 0
    """Number of the burst of the comparison under way, from 1; 0 where there is none."""
    remaining: int = FIRST_WAIT
    """Steps to the next burst or, outside of a comparison, to the next comparison."""
    interval: int = FIRST_WAIT
    seconds: dict[bool, list[float]] = field(default_factory=lambda: {True: [], False: []})
    """Durations of the comparison's counted steps, with drafts (``True``) and without."""
    tokens: deque[float] = field(default_factory=lambda: deque(maxlen=MEMORY))
    """Tokens per request of the newest steps with drafts."""

    @property
    def now(self) -> bool:
        return self.drafts != (self.burst % 2 == 1)


class Payoff:
    def __init__(self) -> None:
        self._ranges: dict[int, _Range] = {}

    def drafts(self, requests: int) -> bool:
        """Whether to draft for so many running requests in the next step."""
        found = self._ranges.get(requests.bit_length())
        return found is None or found.now

    def note(self, requests: int, tokens: int, seconds: float) -> Verdict | None:
        """Tell of a step that only decoded: ``tokens`` for all ``requests`` together, ``seconds`` since the step before
        it, which had as many requests."""
        size = requests.bit_length()
        own = self._ranges.setdefault(size, _Range())
        own.remaining -= 1
        settled = not own.burst or own.remaining < BURST
        if settled and own.now:
            own.tokens.append(tokens / requests)
        if settled and own.burst:
            own.seconds[own.now].append(seconds)
        if own.remaining > 0:
            return None
        if own.burst < BURSTS:
            own.burst += 1
            own.remaining = SETTLING + BURST
            return None
        return self._conclude(own, size)

    def _conclude(self, own: _Range, size: int) -> Verdict | None:
        tokens = fmean(own.tokens)
        speed = tokens * _mean(own.seconds[False]) / _mean(own.seconds[True])
        needed = 1 + MARGIN + 2 * stdev(own.tokens) / sqrt(len(own.tokens)) / tokens
        changes = speed * needed < 1 if own.drafts else speed > needed
        own.burst = 0
        own.seconds = {True: [], False: []}
        own.interval = 2 * FIRST_WAIT if changes else min(2 * own.interval, LONGEST_WAIT)
        own.remaining = own.interval
        if not changes:
            return None
        own.drafts = not own.drafts
        return Verdict(1 << (size - 1), (1 << size) - 1, own.drafts, speed)


def _mean(seconds: Sequence[float]) -> float:
    limit = OUTLIER * median(seconds)
    return max(fmean(each for each in seconds if each <= limit), 1e-9)
