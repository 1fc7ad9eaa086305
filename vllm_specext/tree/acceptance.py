"""How many drafted tokens a verification accepts, learned from the verifications so far.

What a scheduler sees of a verification is the number of accepted tokens. That many levels of the draft were right, so
that each verification tells of every level up to the first wrong one: the estimate is one acceptance per level, given
that the levels before were accepted, and it serves drafts of any length. A tree has more than one candidate on a level:
one of ``w`` is right with probability ``1 - (1 - c) ** w`` where a chain's one is with ``c``. So ``w``, the effective
width of a tree, carries what one size has taught over to the others.

Two memories are kept, a short one and a long one. The long one counts, because it is less noisy, until the short one
contradicts it by more than chance explains: then the text has changed, and the long memory begins anew with the short.
"""

from collections.abc import Iterator, Mapping
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
"""Verifications that an estimate counts as for drafts of another width, for another text, and without drafts for a
while."""

CONTRADICTION = 2.5
"""Standard errors by which the memories differ when the text has changed."""

UNSEEN = 0.85
"""What a level's acceptance may have become while nothing was drafted."""


class _Memory:
    """Verifications of drafts of one width."""

    def __init__(self, levels: int, reach: int) -> None:
        self.keeps = 1 - 1 / reach
        self.tries = [0.0] * levels
        """Verifications in which the levels before were accepted, by level, decayed."""
        self.hits = [0.0] * levels
        """Those in which the level was, too."""

    def fade(self) -> None:
        keeps = self.keeps
        self.tries = [keeps * each for each in self.tries]
        self.hits = [keeps * each for each in self.hits]

    def note(self, reached: list[int]) -> None:
        """``reached[j]``: verifications that accepted at least ``j`` levels; the step drafted all but one of them."""
        for level in range(len(reached) - 1):
            self.tries[level] += reached[level]
            self.hits[level] += reached[level + 1]

    def weigh(self, most: float) -> None:
        """Let no level count as more than so many verifications."""
        for level, tries in enumerate(self.tries):
            if tries > most:
                self.hits[level] *= most / tries
                self.tries[level] = most

    def become(self, other: "_Memory") -> None:
        self.tries, self.hits = list(other.tries), list(other.hits)


class Acceptance:
    """Of the drafts of one method at one load, with at most ``levels`` levels."""

    def __init__(self, levels: int) -> None:
        self.levels = levels
        self._memories: dict[float, tuple[_Memory, _Memory]] = {}
        """The short and the long one by effective width."""
        self._idle = 0
        """Steps since the last draft."""

    def note(self, accepted: Mapping[int, int], levels: int, width: float) -> None:
        """Take note of a step whose drafts had so many ``levels`` and such an effective ``width``: how many
        verifications (values) accepted how many tokens (keys)."""
        self._idle = 0
        levels = min(levels, self.levels)
        reached = [0] * (levels + 1)
        for tokens, verifications in accepted.items():
            reached[min(tokens, levels)] += verifications
        for level in reversed(range(levels)):
            reached[level] += reached[level + 1]
        short, long = self._of(width)
        for memory in self._all():
            memory.fade()
        short.note(reached)
        long.note(reached)
        if _contradicts(short, long):
            # The text has changed: what other widths have seen is of the text before.
            short.weigh(CARRIED)
            long.become(short)
            self._memories = {width: (short, long)}

    def idle(self) -> None:
        """Take note of a step without drafts."""
        self._idle += 1
        if self._idle == SHORT:
            for memory in self._all():
                memory.weigh(CARRIED)

    @property
    def is_stale(self) -> bool:
        """Whether the text may have changed since the last draft."""
        return self._idle >= SHORT

    def tokens(self, levels: int, width: float, hope: float = 0.0) -> float:
        """Accepted tokens that a draft of so many ``levels`` and such a ``width`` may be expected to bring; with
        ``hope``, that many standard errors more, and what may have become of a text that nobody has drafted for."""
        whole, tokens = 1.0, 0.0
        for rate, tries in self._rates(levels, width):
            if hope:
                rate += hope * sqrt(rate * (1 - rate) / (tries + 1))
                rate = max(rate, 1 - (1 - UNSEEN) ** width) if self.is_stale else rate
            whole *= min(rate, 1.0)
            tokens += whole
        return tokens

    def copy(self) -> "Acceptance":
        """The same as a first guess for another load."""
        other = Acceptance(self.levels)
        for width, memories in self._memories.items():
            for own, its in zip(other._of(width), memories, strict=True):
                own.become(its)
                own.weigh(CARRIED)
        return other

    def _of(self, width: float) -> tuple[_Memory, _Memory]:
        if width not in self._memories:
            self._memories[width] = _Memory(self.levels, SHORT), _Memory(self.levels, LONG)
        return self._memories[width]

    def _all(self) -> Iterator[_Memory]:
        for memories in self._memories.values():
            yield from memories

    def _rates(self, levels: int, width: float) -> Iterator[tuple[float, float]]:
        """Acceptance of the first ``levels``, each given the ones before, and the verifications that it rests on. What
        this width has not seen follows from the width that has seen most or, on the same, from the level before."""
        own = self._memories.get(width)
        others = ((long.tries[0], other) for other, (_, long) in self._memories.items() if other != width)
        _, other = max(others, default=(0.0, width))
        elsewhere = None if other == width else self._memories[other][1]
        guess, followed = 1 - (1 - FIRST_GUESS) ** width, 1 - (1 - FIRST_GUESS) ** other
        for level in range(levels):
            tries, hits = (0.0, 0.0) if own is None else (own[1].tries[level], own[1].hits[level])
            strength = SHRINKAGE
            if elsewhere is not None:
                seen = elsewhere.tries[level]
                followed = (elsewhere.hits[level] + SHRINKAGE * followed) / (seen + SHRINKAGE)
                guess, strength = 1 - (1 - followed) ** (width / other), SHRINKAGE + min(seen, CARRIED)
                followed *= FALL
            rate = (hits + strength * guess) / (tries + strength)
            yield rate, tries + strength - SHRINKAGE
            guess = FALL * rate


def _contradicts(short: _Memory, long: _Memory) -> bool:
    """Whether a level's acceptance is another one lately; levels that few verifications reached say nothing."""
    for level, tries in enumerate(short.tries):
        if tries < 8 or long.tries[level] < 1.3 * tries:
            continue
        before = long.hits[level] / long.tries[level]
        spread = sqrt(max(before * (1 - before), 0.01) / tries)
        if abs(short.hits[level] / tries - before) > CONTRADICTION * spread:
            return True
    return False
