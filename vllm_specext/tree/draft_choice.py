"""How many tokens to draft, chosen by what was measured: as many as give the most tokens per second, or none.

Loads are ranges of running requests: 1, 2-3, 4-7 and so on. For each, ``acceptance.py`` says what a draft of a size
brings, and ``step_costs.py`` how long a step with it takes. A load begins without drafts, or with what is known from
the load next to it. Sizes that might do better are tried in short bursts between steps of the usual size, with which
they are compared. What trying loses, beside the usual size, is taken from a budget: a share of the time that passes. A
try that wins pays into it, so that drafting is taken up quickly where a new text makes it pay.

Counts steps and looks at no clock of its own.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp
from statistics import fmean, median

from vllm_specext.tree.acceptance import Acceptance
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.step_costs import StepCosts

BUDGET = 0.01
"""Share of the time that may be lost by trying sizes that turn out worse."""

FIRST_CREDIT, MOST_CREDIT = 3.0, 32.0
"""Steps that may be lost so when a load is first seen, and at most at once."""

PLAIN = 6
"""Steps without drafts that the first load begins with, to compare others with."""

BURST, PROBE = 12, 2
"""Steps of a try, and of one that asks for the acceptance alone, because the cost is known."""

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

MARGIN = 0.02
"""Another size must be better by this share to be taken."""

EVERY = 8
"""Steps between two looks at whether another size is better."""

OUTLIER = 4.0
"""Multiple of the median beyond which a step does not count: something else took the time (a compilation, another
process)."""

KNOWN_WELL = 0.12
"""Standard deviation of a cost's logarithm below which a try need not time it."""

WIDENING = 0.2
"""Exponent of the effective width of a tree, over the number of nodes per level, before it is measured."""


@dataclass(frozen=True)
class Size:
    """A number of drafted tokens that may be chosen."""

    nodes: int
    levels: int
    """Depth of such a draft."""

    @property
    def effort(self) -> float:
        """What the cost is interpolated along: a level is a pass of the drafter, a node a row of the verification."""
        return self.levels + self.nodes / 8

    @property
    def width(self) -> float:
        """First guess of the effective width."""
        return max(1.0, self.nodes / max(self.levels, 1)) ** WIDENING

    @classmethod
    def of(cls, nodes: int, full: TreeShape | None) -> "Size":
        """That of a draft of so many ``nodes``; ``full`` is the largest tree, ``None`` where drafts are chains."""
        return cls(nodes, nodes if full is None else min(nodes, full.depth))


@dataclass(frozen=True)
class Change:
    """Another number of drafted tokens was chosen for ``first`` to ``last`` running requests."""

    first: int
    last: int
    nodes: int
    speed: float
    """Expected speed relative to that without drafts."""


@dataclass
class _Segment:
    """Steps of one size for about the same number of requests, one after another."""

    size: int
    requests: int
    settling: int
    """Steps that are not timed."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    timed: int = 0
    seen: int = 0
    """Steps, those that are not timed included."""
    last: int = 0
    """The step that was timed last."""


@dataclass
class _Load:
    first: int
    last: int
    sizes: Sequence[int]
    acceptance: Acceptance
    costs: StepCosts
    current: int = 0
    trying: int | None = None
    left: int = 0
    """Steps that are left of a try."""
    segment: _Segment | None = None
    before: _Segment | None = None
    """The last steps of another size."""
    pace: float = 0.0
    """Seconds per token with the current size."""
    is_timed: bool = False
    has_plain: bool = False
    """Whether steps without drafts were compared with others at this very load."""
    decided: int = 0
    """Step of the last look."""

    @property
    def now(self) -> int:
        return self.current if self.trying is None else self.trying


class DraftChoice:
    def __init__(
        self, most: Sequence[int], sizes: Sequence[int], full: TreeShape | None, first: int, slope: float
    ) -> None:
        """``most``: the most tokens to draft by number of running requests, from 0 on. ``sizes``: the numbers of tokens
        to choose among. ``full``: the largest tree, ``None`` where drafts are chains. ``first``: the most tokens to
        draft of what was never tried. ``slope``: the guess of what a level costs, in steps without drafts."""
        self._most, self._first, self._slope = most, first, slope
        self._sizes = {nodes: Size.of(nodes, full) for nodes in sorted({0, *sizes, *most})}
        self._widths = {nodes: size.width for nodes, size in self._sizes.items()}
        self._effort = {nodes: size.effort for nodes, size in self._sizes.items()}
        self._levels = max(size.levels for size in self._sizes.values())
        self._loads: dict[int, _Load] = {}
        self._step = 0
        self._asked: deque[int] = deque(maxlen=SETTLING + 1)
        self._answered: dict[int, int] = {}
        self._used: Counter[tuple[int, int]] = Counter()
        """How often steps have changed to a size, by size and number of requests."""
        self._credit = 0.0
        """Seconds that may be lost by trying."""

    def nodes(self, requests: int) -> int:
        """Tokens to draft in the next step of so many running requests."""
        load = self._loads.get(requests.bit_length()) or self._nearest(requests)
        return 0 if load is None else min(load.now, self._most[requests])

    def has_moved(self) -> bool:
        """Whether ``nodes`` may answer otherwise than at the last call."""
        now = {size: load.now for size, load in self._loads.items()}
        moved, self._answered = now != self._answered, now
        return moved

    def skip(self, asked: int) -> None:
        """Tell of a step that did not only decode."""
        self._asked.append(asked)

    def note(self, requests: int, asked: int, accepted: Mapping[int, int], seconds: float | None) -> Change | None:
        """Tell of a step that only decoded and drafted ``asked`` tokens. ``accepted``: how many ``requests`` accepted
        how many tokens of what the step before drafted. ``seconds`` since the step before, ``None`` where that says
        nothing."""
        self._step += 1
        load = self._loads.get(requests.bit_length()) or self._begin(requests)
        verified = self._asked[-1] if self._asked else 0
        self._asked.append(asked)
        if verified:
            size = self._sizes[verified]
            load.acceptance.note(accepted, size.levels, self._widths[verified])
        else:
            load.acceptance.idle()
        if seconds is None:
            return None
        self._time(load, requests, asked, seconds)
        self._account(load, requests, verified, seconds)
        load.left -= 1
        checked = self._compare(load)
        # Plain decoding is timed to the end of its try: everything is compared with it.
        ends = load.trying is not None and (
            load.left <= 0 or bool(checked and load.trying and not self._may_win(load, load.trying))
        )
        if ends:
            load.trying = None
        if load.trying is None and (ends or checked or self._step - load.decided >= EVERY):
            return self._decide(load, requests)
        return None

    def _begin(self, requests: int) -> _Load:
        size = requests.bit_length()
        first, last = 1 << (size - 1), min((1 << size) - 1, len(self._most) - 1)
        most = max(self._most[first : last + 1])
        sizes = [nodes for nodes in self._sizes if nodes <= most]
        known = self._nearest(requests)
        if known is None:
            load = _Load(first, last, sizes, Acceptance(self._levels), StepCosts(self._effort, self._slope))
        else:
            load = _Load(
                first,
                last,
                sizes,
                known.acceptance.copy(),
                known.costs.copy(self._step, abs(known.last.bit_length() - size)),
            )
            load.current = min(known.current, most)
        self._loads[size] = load
        return load

    def _nearest(self, requests: int) -> _Load | None:
        size = requests.bit_length()
        near = min(self._loads, key=lambda other: (abs(other - size), other), default=None)
        return None if near is None else self._loads[near]

    def _account(self, load: _Load, requests: int, verified: int, seconds: float) -> None:
        if not load.is_timed:
            load.is_timed = True
            self._credit = max(self._credit, 0.0) + FIRST_CREDIT * seconds
        self._credit += BUDGET * seconds
        # Steps after a try still verify what it drafted.
        if load.pace and (load.trying is not None or self._asked[0] != load.current or self._asked[-1] != load.current):
            # In beliefs, because one step's tokens are chance, and a new text is not the fault of what is tried.
            usual = load.pace * self._tokens(load, load.current) * requests
            worth = self._tokens(load, verified) / self._tokens(load, load.current)
            most, segment = OUTLIER, load.segment
            if segment is not None and segment.seen <= segment.settling > SETTLING:
                most = load.costs.cost(segment.size) / load.costs.cost(load.current)
            self._credit -= min(seconds, most * usual) - usual * worth
        self._credit = min(self._credit, MOST_CREDIT * seconds)

    def _time(self, load: _Load, requests: int, asked: int, seconds: float) -> None:
        segment = load.segment
        if segment is None or segment.size != asked or abs(requests - segment.requests) > segment.requests // 8:
            if segment is not None and segment.timed >= CHECKS[0]:
                load.before = segment
            segment = load.segment = _Segment(asked, requests, SETTLING + self._warming(asked, requests))
            self._used[asked, requests] += 1
        segment.seen += 1
        if segment.seen > segment.settling:
            segment.seconds.append(seconds)
            segment.timed += 1
            segment.last = self._step
            if asked == load.current:
                tokens = requests * self._tokens(load, asked)
                load.pace = _mean(segment.seconds) / tokens

    def _compare(self, load: _Load) -> bool:
        """Learn from the change of size before the present steps; whether something was learned."""
        segment, before = load.segment, load.before
        if segment is None or before is None or segment.timed not in CHECKS or before.size == segment.size:
            return False
        if abs(before.requests - segment.requests) > segment.requests // 8 or self._step - before.last > RECENT:
            return False
        place = CHECKS.index(segment.timed)
        since = CHECKS[place] - (CHECKS[place - 1] if place else 0)
        newest = list(segment.seconds)[-since:]
        # Of three steps a disturbed one would not stand out.
        ratio = (_mean(newest) if place else median(newest)) / _mean(before.seconds)
        load.has_plain |= not (before.size and segment.size)
        load.costs.compare(before.size, segment.size, ratio, (len(before.seconds), since), self._step)
        return True

    def _tokens(self, load: _Load, nodes: int, hope: float = 0.0) -> float:
        if not nodes:
            return 1.0
        size = self._sizes[nodes]
        return 1 + min(load.acceptance.tokens(size.levels, self._widths[nodes], hope), nodes)

    def _rate(self, load: _Load, nodes: int) -> float:
        """Expected tokens of a request, in the time of a step of about that without drafts."""
        return self._tokens(load, nodes) / load.costs.cost(nodes)

    def _hope(self, load: _Load, nodes: int) -> float:
        """The rate as it might turn out to be."""
        cost = load.costs.cost(nodes) * exp(-load.costs.uncertainty(nodes, self._step))
        return self._tokens(load, nodes, hope=1.0) / cost

    def _may_win(self, load: _Load, nodes: int) -> bool:
        return self._hope(load, nodes) > self._rate(load, load.current)

    def _decide(self, load: _Load, requests: int) -> Change | None:
        load.decided = self._step
        segment = load.segment
        allowed = [nodes for nodes in load.sizes if nodes <= self._most[requests]]
        if load.current > allowed[-1]:
            load.current, load.pace = allowed[-1], 0.0
        known = [nodes for nodes in allowed if load.costs.tried(nodes)]
        if len(known) == 1:
            if segment is None or segment.timed < PLAIN:
                return None  # nothing to compare with yet
            known += [nodes for nodes in allowed if 0 < nodes <= self._first]
        rates = {nodes: self._rate(load, nodes) for nodes in known}
        now = self._rate(load, load.current)
        best = max(rates, key=lambda nodes: rates[nodes])
        if rates[best] > (1 + MARGIN) * now:
            load.current, load.pace = best, 0.0
            return Change(load.first, load.last, best, rates[best] / self._rate(load, 0))
        self._try_another(load, allowed, requests, now)
        return None

    def _warming(self, nodes: int, requests: int) -> int:
        # Twice: what follows a size for the first time is another pass than what began with it.
        return 0 if self._used[nodes, requests] > 1 else WARMING

    def _try_another(self, load: _Load, allowed: Sequence[int], requests: int, now: float) -> None:
        segment = load.segment
        if segment is None or segment.size != load.current or segment.timed < CHECKS[1]:
            return
        if load.current and not load.has_plain:
            # What another load has taught may be far off, and plain decoding is what has to be beaten.
            load.trying, load.left = 0, BURST + self._warming(0, requests)
            return
        step = _mean(segment.seconds)
        chances: list[tuple[float, int, int]] = []
        for nodes in allowed:
            if nodes == load.current:
                continue
            hope = self._hope(load, nodes)
            length = BURST + self._warming(nodes, requests)
            if not load.current and load.costs.uncertainty(nodes, self._step) < KNOWN_WELL:
                length = PROBE
            slower = load.costs.cost(nodes) / load.costs.cost(load.current)
            lost = max(slower - self._tokens(load, nodes) / self._tokens(load, load.current), 0.0)
            if hope > now and self._credit > lost * length * step:
                # When nothing is drafted, the cheapest question is the best.
                chances.append((-lost if length == PROBE else hope / now, nodes, length))
        if chances:
            _, load.trying, load.left = max(chances)


def _mean(seconds: Sequence[float] | deque[float]) -> float:
    limit = OUTLIER * median(seconds)
    return max(fmean(each for each in seconds if each <= limit), 1e-9)
