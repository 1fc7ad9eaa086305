"""How long the steps of one size took, beside those of the size before.

Steps right after a change of size are not timed: they verify what the size before drafted, and passes may be compiled
or recorded. Those after them are compared with the last ones before the change, a few times while they become more.
"""

from collections import Counter, deque
from dataclasses import dataclass, field
from statistics import fmean, median

from vllm_specext.tree.draft_size import DraftSize

SETTLING = 2
"""Steps after a change that are not timed: a step verifies what an earlier one drafted, and with asynchronous
scheduling another is under way."""

WARMING = 2
"""Further steps that are not timed when so many requests draft a number of tokens for the first time: passes are
compiled or recorded then. No budget pays for that."""

CHECKS = (3, 7, 12)
"""After so many timed steps of a size, those since the last check are compared with those before the change."""

REMEMBERED = 16
"""Timed steps that a later size is compared with."""

RECENT = 64
"""Steps after which a size is compared with no earlier one: texts have grown, and other things may have changed."""

OUTLIER = 4.0
"""Multiple of the median beyond which a step does not count: something else took the time (a compilation, another
process)."""


def about_as_many(requests: int, as_others: int) -> bool:
    return abs(requests - as_others) <= as_others // 8


def mean(seconds: list[float] | deque[float]) -> float:
    """Mean of what are no outliers."""
    limit = OUTLIER * median(seconds)
    return max(fmean(each for each in seconds if each <= limit), 1e-9)


@dataclass
class Segment:
    """Steps of one size for about the same number of requests, one after another."""

    size: DraftSize
    requests: int
    settling: int
    """Steps that are not timed."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    timed: int = 0
    seen: int = 0
    """Steps, those that are not timed included."""
    last: int = 0
    """The step that was timed last."""

    @property
    def is_warming(self) -> bool:
        """Whether these are steps in which passes may be compiled or recorded."""
        return self.seen <= self.settling > SETTLING

    def is_like(self, requests: int) -> bool:
        """Whether so many requests are about as many."""
        return about_as_many(requests, self.requests)


@dataclass(frozen=True)
class Comparison:
    before: DraftSize
    after: DraftSize
    """Two sizes."""
    ratio: float
    """Duration of a step of the latter, relative to one of the former."""
    steps: tuple[int, int]
    """How many steps of either were timed."""


class Warming:
    """How long a size and a number of requests are new to the engine."""

    def __init__(self) -> None:
        self._used: Counter[tuple[DraftSize, int]] = Counter()
        """How often steps have changed to a size, by size and number of requests."""

    def steps(self, size: DraftSize, requests: int) -> int:
        """Further steps that are not timed, the first two times that a size is used: after the second, a pass may come
        that is new as well."""
        return 0 if self._used[size, requests] > 1 else WARMING

    def begin(self, size: DraftSize, requests: int) -> int:
        """The same, when such steps begin."""
        steps = self.steps(size, requests)
        self._used[size, requests] += 1
        return steps


@dataclass
class TimedSteps:
    """The steps of one load, the latest and those of the size before."""

    warming: Warming
    latest: Segment | None = None
    before: Segment | None = None

    def note(self, step: int, size: DraftSize, requests: int, seconds: float) -> Segment:
        """Take note of a step, counted from the start; the segment that it belongs to."""
        segment = self.latest
        if segment is None or segment.size != size or not segment.is_like(requests):
            if segment is not None and segment.timed >= CHECKS[0]:
                self.before = segment
            segment = self.latest = Segment(size, requests, SETTLING + self.warming.begin(size, requests))
        segment.seen += 1
        if segment.seen > segment.settling:
            segment.seconds.append(seconds)
            segment.timed += 1
            segment.last = step
        return segment

    def comparison(self, step: int) -> Comparison | None:
        """What the last step has completed, if anything."""
        latest, before = self.latest, self.before
        if latest is None or before is None or latest.timed not in CHECKS or before.size == latest.size:
            return None
        if not latest.is_like(before.requests) or step - before.last > RECENT:
            return None
        place = CHECKS.index(latest.timed)
        since = CHECKS[place] - (CHECKS[place - 1] if place else 0)
        newest = list(latest.seconds)[-since:]
        # Of three steps a disturbed one would not stand out.
        ratio = (mean(newest) if place else median(newest)) / mean(before.seconds)
        return Comparison(before.size, latest.size, ratio, (len(before.seconds), since))
