"""How long steps take that draft more or less, relative to each other.

Only steps that follow one another are compared: texts grow, and a machine is slow for a while, but what a step with
drafts costs beside one without hardly changes. Each comparison of two sizes moves what is known of both, the less
certain one more (a Kalman filter without correlations, over the logarithms of the costs). What was never tried is
guessed (``guessed_costs.py``), and the uncertainty of what was not tried for long grows.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log, sqrt

from vllm_specext.tree.draft_size import NOTHING, DraftSize
from vllm_specext.tree.guessed_costs import guessed_cost

DRIFT = 1e-5
"""What the variance of a logarithm grows by in a step: a standard deviation of 0.1 in a thousand."""

SPREAD = 0.2
"""Standard deviation of a single step's duration, relative to the mean."""

FLOOR = 0.01
"""Standard error that no number of steps goes below."""

SURPRISE = 3.0
"""Standard deviations beyond which a comparison contradicts what is known."""

UNTRIED = 0.3
"""Standard deviation of a cost that is guessed."""

OTHER_DEPTH = 0.1
"""The same, where a tree of as many nodes was tried."""

CARRIED = 0.2
"""Standard deviation that another load adds, for each range between the two."""


RESTORED = 0.1
"""Standard deviation that another start of the same adds."""

Costs = Mapping[DraftSize, tuple[float, float]]
"""Logarithm of the cost, and its variance, by size."""


@dataclass
class _Known:
    logarithm: float
    variance: float
    since: int
    """Step of the last comparison."""


class StepCosts:
    def __init__(self, slope: float) -> None:
        """``slope``: what one of effort takes, in steps without drafts, before anything is known."""
        self._slope = slope
        self._known: dict[DraftSize, _Known] = {NOTHING: _Known(0.0, 0.0, 0)}
        self._costs: dict[DraftSize, float] = {}
        """What was found out since the last comparison."""

    def tried(self, size: DraftSize) -> bool:
        return size in self._known

    def compare(self, before: DraftSize, after: DraftSize, ratio: float, steps: tuple[int, int], now: int) -> bool:
        """Steps that draft ``after`` took ``ratio`` times as long as those that draft ``before``; so many ``steps`` of
        either were timed. Whether that is no surprise."""
        noise = SPREAD**2 * (1 / steps[0] + 1 / steps[1]) + FLOOR**2
        first = self._known.get(before)
        if first is None:
            first = self._known[before] = _Known(log(self.cost(before)), UNTRIED**2, now)
        self._costs = {}
        second = self._known.get(after)
        if second is None:
            variance = self._variance(first, now) + noise
            self._known[after] = _Known(first.logarithm + log(ratio), variance, now)
            return True
        own = self._variance(first, now), self._variance(second, now)
        error = log(ratio) - (second.logarithm - first.logarithm)
        if error**2 > SURPRISE**2 * (sum(own) + noise):
            # Something else took the time, or the machine has changed: a second such comparison will tell, which is no
            # surprise any more. Until then, what is known stays, but is doubted, so that it is tried again.
            for each, variance in zip((first, second), own, strict=True):
                each.variance, each.since = variance + error**2 / 4, now
            return False
        total = sum(own) + noise
        first.logarithm -= own[0] / total * error
        second.logarithm += own[1] / total * error
        for each, variance in zip((first, second), own, strict=True):
            each.variance, each.since = variance * (1 - variance / total), now
        return True

    def cost(self, size: DraftSize) -> float:
        """What a step takes, in steps of about that without drafts."""
        if not self._costs:
            self._costs = {known: self._of_tried(known) for known in self._known}
        if size not in self._costs:
            tried = {known: self._costs[known] for known in self._known}
            self._costs[size] = guessed_cost(size, tried, self._slope)
        return self._costs[size]

    def _of_tried(self, size: DraftSize) -> float:
        """No more than that of a draft that has more of all, if more is known of that. (The reverse would have plain
        decoding, slow when it begins again, make all drafts look slow.)"""
        own = self._known[size]
        surer = (known for other, known in self._known.items() if known.variance < own.variance and other.holds(size))
        return exp(min([own.logarithm, *(known.logarithm for known in surer)]))

    def uncertainty(self, size: DraftSize, now: int) -> float:
        """Standard deviation of the cost's logarithm."""
        if (found := self._known.get(size)) is not None:
            return sqrt(self._variance(found, now))
        beside = (
            sqrt(self._variance(known, now) + OTHER_DEPTH**2)
            for other, known in self._known.items()
            if other.nodes == size.nodes
        )
        return min([UNTRIED, *beside])

    def known(self, now: int) -> Costs:
        """What the next start may begin with. What is long out of date is as uncertain as what was never tried."""
        found = {size: (known.logarithm, self._variance(known, now)) for size, known in self._known.items()}
        return {size: (logarithm, min(variance, UNTRIED**2)) for size, (logarithm, variance) in found.items()}

    def restore(self, costs: Costs, now: int) -> None:
        """Begin with what an earlier start knew."""
        self._costs = {}
        for size, (logarithm, variance) in costs.items():
            self._known[size] = _Known(logarithm, variance + RESTORED**2, now)

    def copy(self, now: int, ranges: int) -> "StepCosts":
        """The same as a first guess for another load, so many ``ranges`` away."""
        other = StepCosts(self._slope)
        for size, known in self._known.items():
            variance = self._variance(known, now) + (CARRIED * ranges) ** 2
            other._known[size] = _Known(known.logarithm, variance, now)
        return other

    @staticmethod
    def _variance(known: _Known, now: int) -> float:
        return known.variance + DRIFT * (now - known.since)
