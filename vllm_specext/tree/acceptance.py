"""How many drafted tokens a verification accepts, learned from the verifications so far.

What a scheduler sees of a verification is the number of accepted tokens. That many levels of the draft were right, so
that each verification tells of every level up to the first wrong one: the estimate is one acceptance per level, given
that the levels before were accepted, and it serves drafts of any length. A tree has more than one candidate on a level:
one of ``w`` is right with probability ``1 - (1 - c) ** w`` where a chain's one is with ``c``. So ``w``, the effective
width of a tree, carries what one size has taught over to the others.

Two memories are kept, a short one and a long one. The long one counts, because it is less noisy, until the short one
contradicts it by more than chance explains: then the text has changed, and the long memory begins anew with the short.
"""

from collections.abc import Mapping
from math import sqrt

SHORT, LONG = 48, 400
"""Steps with drafts that the memories reach back, on average."""

FIRST_GUESS = 0.6
"""Acceptance of a chain's first level before anything is known."""

FALL = 0.97
"""A level of which little is known is accepted less than the one before by this factor."""

SHRINKAGE = 2.0
"""Verifications that the guess for a level counts as."""

CARRIED = 6.0
"""Verifications that the estimate counts as after a change of the width, or without drafts for a while."""

CONTRADICTION = 2.5
"""Standard errors by which the memories differ when the text has changed."""

UNSEEN = 0.85
"""What a level's acceptance may have become while nothing was drafted."""


class _Memory:
    def __init__(self, levels: int, reach: int) -> None:
        self.keeps = 1 - 1 / reach
        self.tries = [0.0] * levels
        """Verifications in which the levels before were accepted, by level, decayed."""
        self.hits = [0.0] * levels
        """Those in which the level was, too."""

    def note(self, reached: list[int]) -> None:
        """``reached[j]``: verifications that accepted at least ``j`` levels; the step drafted all but one of them."""
        keeps = self.keeps
        self.tries = [keeps * each for each in self.tries]
        self.hits = [keeps * each for each in self.hits]
        for level in range(len(reached) - 1):
            self.tries[level] += reached[level]
            self.hits[level] += reached[level + 1]

    def rates(self, width: float) -> list[float]:
        """Acceptance of every level, given the ones before; what is not known follows from the level before."""
        guess, rates = 1 - (1 - FIRST_GUESS) ** width, []
        for tries, hits in zip(self.tries, self.hits, strict=True):
            rate = (hits + SHRINKAGE * guess) / (tries + SHRINKAGE)
            rates.append(rate)
            guess = FALL * rate
        return rates

    def weigh(self, most: float) -> None:
        """Let no level count as more than so many verifications."""
        for level, tries in enumerate(self.tries):
            if tries > most:
                self.hits[level] *= most / tries
                self.tries[level] = most

    def widen(self, power: float) -> None:
        """Make the estimates those of a width that is ``power`` times as large."""
        for level, tries in enumerate(self.tries):
            if tries:
                self.hits[level] = tries * (1 - (1 - min(self.hits[level] / tries, 1.0)) ** power)

    def become(self, other: "_Memory") -> None:
        self.tries, self.hits = list(other.tries), list(other.hits)


class Acceptance:
    """Of the drafts of one method at one load, with at most ``levels`` levels."""

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self._short, self._long = _Memory(levels, SHORT), _Memory(levels, LONG)
        self._width = 1.0
        """Effective width of the drafts that the memories tell of."""
        self._idle = 0
        """Steps since the last draft."""

    def note(self, accepted: Mapping[int, int], levels: int, width: float) -> None:
        """Take note of a step whose drafts had so many ``levels`` and such an effective ``width``: how many
        verifications (values) accepted how many tokens (keys)."""
        if width != self._width:
            for memory in (self._short, self._long):
                memory.widen(width / self._width)
                memory.weigh(CARRIED)
            self._width = width
        self._idle = 0
        levels = min(levels, self.levels)
        reached = [0] * (levels + 1)
        for tokens, verifications in accepted.items():
            reached[min(tokens, levels)] += verifications
        for level in reversed(range(levels)):
            reached[level] += reached[level + 1]
        self._short.note(reached)
        self._long.note(reached)
        if self._contradicted():
            self._long.become(self._short)

    def idle(self) -> None:
        """Take note of a step without drafts."""
        self._idle += 1
        if self._idle == SHORT:
            self._short.weigh(CARRIED)
            self._long.weigh(CARRIED)

    @property
    def is_stale(self) -> bool:
        """Whether the text may have changed since the last draft."""
        return self._idle >= SHORT

    @property
    def verifications(self) -> float:
        """How many verifications the estimate rests on."""
        return self._long.tries[0]

    def tokens(self, levels: int, width: float, hope: float = 0.0) -> float:
        """Accepted tokens that a draft of so many ``levels`` and such a ``width`` may be expected to bring; with
        ``hope``, that many standard errors more, and what may have become of a text that nobody has drafted for."""
        power, whole, tokens = width / self._width, 1.0, 0.0
        for rate, tries in zip(self._long.rates(self._width)[:levels], self._long.tries, strict=False):
            if hope:
                rate += hope * sqrt(rate * (1 - rate) / (tries + 1))
                rate = max(rate, UNSEEN) if self.is_stale else rate
            whole *= 1 - (1 - min(rate, 1.0)) ** power
            tokens += whole
        return tokens

    def copy(self) -> "Acceptance":
        """The same as a first guess for another load."""
        other = Acceptance(self.levels)
        other._width = self._width
        for own, its in ((other._short, self._short), (other._long, self._long)):
            own.become(its)
            own.weigh(CARRIED)
        return other

    def _contradicted(self) -> bool:
        """Whether a level's acceptance is another one lately; levels that few verifications reached say nothing."""
        short, long = self._short, self._long
        for level, tries in enumerate(short.tries):
            if tries < 8 or long.tries[level] < 2 * tries:
                continue
            before = long.hits[level] / long.tries[level]
            spread = sqrt(max(before * (1 - before), 0.01) / tries)
            if abs(short.hits[level] / tries - before) > CONTRADICTION * spread:
                return True
        return False
