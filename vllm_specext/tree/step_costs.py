"""How long steps take that draft different numbers of tokens, relative to each other.

Only steps that follow one another are compared: texts grow, and a machine is slow for a while, but what a step with
drafts costs beside one without hardly changes. Each comparison of two sizes moves what is known of both, the less
certain one more (a Kalman filter without correlations, over the logarithms of the costs). What was never tried is
interpolated along ``effort``, and the uncertainty of what was not tried for long grows.
"""

from bisect import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log, sqrt

DRIFT = 1e-5
"""What the variance of a logarithm grows by in a step: a standard deviation of 0.1 in a thousand."""

SPREAD = 0.2
"""Standard deviation of a single step's duration, relative to the mean."""

FLOOR = 0.01
"""Standard error that no number of steps goes below."""

SURPRISE = 3.0
"""Standard deviations beyond which a comparison contradicts what is known."""

UNTRIED = 0.3
"""Standard deviation of a cost that is interpolated."""

CARRIED = 0.2
"""Standard deviation that another load adds, for each range between the two."""


RESTORED = 0.1
"""Standard deviation that another start of the same adds."""

Costs = Mapping[int, tuple[float, float]]
"""Logarithm of the cost, and its variance, by size."""


@dataclass
class _Known:
    logarithm: float
    variance: float
    since: int
    """Step of the last comparison."""


class StepCosts:
    def __init__(self, effort: Mapping[int, float], slope: float) -> None:
        """``effort``: what the cost of each size is interpolated along, 0 for no drafts. ``slope``: what one of it
        takes, in steps without drafts, before anything is known."""
        self._effort, self._slope = effort, slope
        self._known: dict[int, _Known] = {0: _Known(0.0, 0.0, 0)}

    def tried(self, size: int) -> bool:
        return size in self._known

    def compare(self, before: int, after: int, ratio: float, steps: tuple[int, int], now: int) -> bool:
        """Steps that draft ``after`` took ``ratio`` times as long as those that draft ``before``; so many ``steps`` of
        either were timed. Whether that is no surprise."""
        noise = SPREAD**2 * (1 / steps[0] + 1 / steps[1]) + FLOOR**2
        first = self._known.get(before)
        if first is None:
            first = self._known[before] = _Known(log(self.cost(before)), UNTRIED**2, now)
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

    def cost(self, size: int) -> float:
        """What a step takes, in steps of about that without drafts."""
        if (found := self._known.get(size)) is not None:
            return exp(found.logarithm)
        sizes = sorted(self._known)
        place = bisect(sizes, size)
        if place == len(sizes):
            base = exp(self._known[0].logarithm)
            last = exp(self._known[sizes[-1]].logarithm)
            reach = self._effort[sizes[-1]]
            slope = (last - base) / reach if reach else self._slope * base
            return last + max(slope, 0.0) * (self._effort[size] - reach)
        lower, upper = sizes[place - 1], sizes[place]
        share = (self._effort[size] - self._effort[lower]) / (self._effort[upper] - self._effort[lower])
        costs = [exp(self._known[each].logarithm) for each in (lower, upper)]
        return (1 - share) * costs[0] + share * costs[1]

    def uncertainty(self, size: int, now: int) -> float:
        """Standard deviation of the cost's logarithm."""
        found = self._known.get(size)
        return UNTRIED if found is None else sqrt(self._variance(found, now))

    def known(self, now: int) -> Costs:
        """What the next start may begin with. What is long out of date is as uncertain as what was never tried."""
        found = {size: (known.logarithm, self._variance(known, now)) for size, known in self._known.items()}
        return {size: (logarithm, min(variance, UNTRIED**2)) for size, (logarithm, variance) in found.items()}

    def restore(self, costs: Costs, now: int) -> None:
        """Begin with what an earlier start knew, as far as the sizes are the same."""
        for size in self._effort.keys() & costs.keys():
            logarithm, variance = costs[size]
            self._known[size] = _Known(logarithm, variance + RESTORED**2, now)

    def copy(self, now: int, ranges: int) -> "StepCosts":
        """The same as a first guess for another load, so many ``ranges`` away."""
        other = StepCosts(self._effort, self._slope)
        for size, known in self._known.items():
            variance = self._variance(known, now) + (CARRIED * ranges) ** 2
            other._known[size] = _Known(known.logarithm, variance, now)
        return other

    @staticmethod
    def _variance(known: _Known, now: int) -> float:
        return known.variance + DRIFT * (now - known.since)
