"""How much to draft, chosen by what was measured: as much as gives the most tokens per second, or nothing.

Loads are ranges of running requests: 1, 2-3, 4-7 and so on. For each, ``acceptance.py`` says what a draft of a size
brings, and ``step_costs.py`` how long a step with it takes, by what ``timed_steps.py`` has timed, less what prompts add
to it (``prompt_costs.py``). A load begins without drafts, or with what is known from the load next to it. Sizes that
might do better are tried in short bursts between steps of the usual size, with which they are compared. What trying
loses, beside the usual size, is taken from a budget: a share of the time that passes. A try that wins pays into it, so
that drafting is taken up quickly where a new text makes it pay.

Counts steps and looks at no clock of its own.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from vllm_specext.tree.acceptance import Acceptance
from vllm_specext.tree.draft_load import DraftLoad
from vllm_specext.tree.draft_size import NOTHING, DraftSize
from vllm_specext.tree.step_costs import Costs, StepCosts
from vllm_specext.tree.timed_steps import CHECKS, OUTLIER, SETTLING, Segment, TimedSteps, Warming, mean

BUDGET = 0.01
"""Share of the time that may be lost by trying sizes that turn out worse."""

FIRST_CREDIT, MOST_CREDIT = 14.0, 32.0
"""Steps that may be lost so when a load is first seen, and at most at once."""

PLAIN = 6
"""Steps without drafts that the first load begins with, to compare others with."""

BURST, PROBE = 12, 2
"""Steps of a try, and of one that asks for the acceptance alone, because the cost is known."""

RECHECK, MOST_RECHECK = 128, 4096
"""Steps after which a size is compared with plain decoding again, however sure it is that it is faster: at first and at
most. Each comparison that agrees doubles them, so that they cost less and less."""

MARGIN = 0.02
"""Another size must be better by this share to be taken."""

EVERY = 8
"""Steps between two looks at whether another size is better."""

WASTED = 2 * BURST
"""Steps that say nothing of what they take, after which a try ends: most read long prompts, and they may go on for as
long as a server is busy."""

TRUSTED = 32
"""Such steps in a row after which a load drafts nothing, if it has timed no steps of the size in use: what was guessed,
or what the next load has taught, may be far off."""

KNOWN_WELL = 0.12
"""Standard deviation of a cost's logarithm below which a try need not time it."""


@dataclass(frozen=True)
class Change:
    """Another size of drafts was chosen for ``first`` to ``last`` running requests."""

    first: int
    last: int
    size: DraftSize
    speed: float
    """Expected speed relative to that without drafts."""


class DraftChoice:
    def __init__(
        self,
        most: Sequence[int],
        sizes: Iterable[DraftSize],
        first: int,
        slope: float,
        known: Mapping[int, Costs] | None = None,
    ) -> None:
        """``most``: the most tokens to draft by number of running requests, from 0 on. ``sizes``: what to choose among,
        beside nothing. ``first``: the most tokens to draft of what was never tried. ``slope``: the guess of what a
        level costs, in steps without drafts. ``known``: the ``costs`` of an earlier choice."""
        self._most, self._first, self._slope = most, first, slope
        self._sizes = sorted({NOTHING, *sizes})
        self._largest = {bound: max(size for size in self._sizes if size.nodes <= bound) for bound in set(most)}
        self._earlier = {
            bits: {size: cost for size, cost in costs.items() if size in self._sizes}
            for bits, costs in (known or {}).items()
        }
        self._loads: dict[int, DraftLoad] = {}
        self._step = 0
        self._asked: deque[DraftSize] = deque(maxlen=SETTLING + 1)
        self._answered: dict[int, DraftSize] = {}
        self._warming = Warming()
        self._credit = 0.0
        """Seconds that may be lost by trying."""

    def costs(self) -> dict[int, Costs]:
        """What is known of the steps' costs, by load, and was known before of loads that were not seen since."""
        return {**self._earlier, **{bits: load.costs.known(self._step) for bits, load in self._loads.items()}}

    def size(self, requests: int) -> DraftSize:
        """What to draft in the next step of so many running requests."""
        if (load := self._loads.get(requests.bit_length())) is not None:
            return self._fitting(load.now, self._most[requests])
        near = self._nearest(requests)
        # What that one tries is its own business.
        return NOTHING if near is None else self._fitting(near.current, self._most[requests])

    def has_moved(self) -> bool:
        """Whether ``size`` may answer otherwise than at the last call."""
        now = {bits: load.now for bits, load in self._loads.items()}
        moved, self._answered = now != self._answered, now
        return moved

    def skip(self, requests: int, asked: DraftSize) -> None:
        """Tell of a step of so many ``requests`` that says neither what drafts bring nor what they cost."""
        self._asked.append(asked)
        load = self._loads.get(requests.bit_length()) or self._begin(requests)
        load.prompts.before = None
        self._pass(load)

    def note(
        self, requests: int, asked: DraftSize, accepted: Mapping[int, int], seconds: float | None, prompt: int = 0
    ) -> Change | None:
        """Tell of a step of so many ``requests`` that decoded and drafted what was ``asked``. ``accepted``: how many of
        them accepted how many tokens of what the step before drafted. ``seconds`` since the step before, ``None`` where
        that says nothing. ``prompt``: tokens of prompts that the step read too."""
        self._step += 1
        load = self._loads.get(requests.bit_length()) or self._begin(requests)
        verified = self._asked[-1] if self._asked else NOTHING
        self._asked.append(asked)
        load.verified(verified, accepted)
        seconds = load.prompts.note(asked, requests, prompt, seconds)
        if seconds is None:
            self._pass(load)
            return None
        segment = load.steps.note(self._step, asked, requests, seconds)
        if segment.timed:
            load.was_timed, load.untimed = True, 0
        if segment.timed and asked == load.current:
            load.pace = mean(segment.seconds) / (requests * load.tokens(asked))
        self._account(load, segment, requests, verified, seconds)
        load.left -= 1
        checked = self._compare(load)
        ends = load.trying is not None and (load.left <= 0 or (checked and not self._may_win(load, load.trying)))
        if ends:
            load.trying = None
        if load.trying is None and (ends or checked or self._step - load.decided >= EVERY):
            return self._decide(load, segment, requests)
        return None

    def _pass(self, load: DraftLoad) -> None:
        """Count a step that says nothing of what it takes. What is tried meanwhile is paid for all the same."""
        load.untimed += 1
        if load.trying is not None:
            self._credit -= load.risk
            load.wasted += 1
            if load.wasted >= WASTED:
                load.trying = None
        if load.untimed >= TRUSTED and load.current.nodes and not (load.was_timed and load.costs.tried(load.current)):
            load.use(NOTHING)

    def _begin(self, requests: int) -> DraftLoad:
        bits = requests.bit_length()
        first, last = 1 << (bits - 1), min((1 << bits) - 1, len(self._most) - 1)
        most = max(self._most[first : last + 1])
        allowed = [size for size in self._sizes if size.nodes <= most]
        known = self._nearest(requests)
        if known is None:
            acceptance = Acceptance(max(size.levels for size in self._sizes))
            costs = StepCosts(self._slope)
        else:
            acceptance = known.acceptance.copy()
            costs = known.costs.copy(self._step, abs(known.last.bit_length() - bits))
        load = DraftLoad(first, last, allowed, acceptance, costs, TimedSteps(self._warming))
        load.patience = RECHECK
        if known is not None:
            load.current = self._fitting(known.current, most)
        if bits in self._earlier:
            load.costs.restore(self._earlier[bits], self._step)
            load.recheck = self._step + RECHECK
        self._loads[bits] = load
        return load

    def _nearest(self, requests: int) -> DraftLoad | None:
        bits = requests.bit_length()
        near = min(self._loads, key=lambda other: (abs(other - bits), other), default=None)
        return None if near is None else self._loads[near]

    def _fitting(self, size: DraftSize, most: int) -> DraftSize:
        """``size``, or what it may be where at most so many tokens are drafted."""
        return size if size.nodes <= most else self._largest[most]

    def _account(self, load: DraftLoad, segment: Segment, requests: int, verified: DraftSize, seconds: float) -> None:
        if not load.has_credit and segment.timed >= CHECKS[0]:
            # Not by the first steps, in which passes may be compiled or recorded.
            load.has_credit = True
            self._credit = max(self._credit, 0.0) + FIRST_CREDIT * mean(segment.seconds)
        self._credit += BUDGET * seconds
        # Steps after a try still verify what it drafted.
        if load.pace and (load.trying is not None or self._asked[0] != load.current or self._asked[-1] != load.current):
            # In beliefs, because one step's tokens are chance, and a new text is not the fault of what is tried.
            usual = load.pace * load.tokens(load.current) * requests
            worth = load.tokens(verified) / load.tokens(load.current)
            most = OUTLIER
            if segment.is_warming:
                most = load.costs.cost(segment.size) / load.costs.cost(load.current)
            self._credit -= min(seconds, most * usual) - usual * worth
        self._credit = min(self._credit, MOST_CREDIT * seconds)

    def _compare(self, load: DraftLoad) -> bool:
        """Learn from the change of size before the present steps; whether something was learned."""
        found = load.steps.comparison(self._step)
        if found is None:
            return False
        agrees = load.costs.compare(found.before, found.after, found.ratio, found.steps, self._step)
        if not agrees:
            load.patience = RECHECK
        if not (found.before.nodes and found.after.nodes):
            load.recheck = self._step + load.patience
        return True

    def _may_win(self, load: DraftLoad, size: DraftSize) -> bool:
        return load.hope(size, self._step) > load.rate(load.current)

    def _decide(self, load: DraftLoad, segment: Segment, requests: int) -> Change | None:
        load.decided = self._step
        allowed = [size for size in load.allowed if size.nodes <= self._most[requests]]
        if load.current not in allowed:
            load.use(allowed[-1])
        known = [size for size in allowed if load.costs.tried(size)]
        if len(known) == 1:
            if segment.timed < PLAIN:
                return None  # nothing to compare with yet
            deepest = {size.nodes: size for size in allowed}
            known += [size for size in deepest.values() if 0 < size.nodes <= self._first]
        rates = {size: load.rate(size) for size in known}
        best = max(rates, key=lambda size: rates[size])
        if rates[best] > (1 + MARGIN) * load.rate(load.current):
            load.use(best)
            return Change(load.first, load.last, best, rates[best] / load.rate(NOTHING))
        self._try_another(load, segment, requests, allowed)
        return None

    def _try_another(self, load: DraftLoad, segment: Segment, requests: int, allowed: Sequence[DraftSize]) -> None:
        if segment.size != load.current or segment.timed < CHECKS[1]:
            return
        now, step = load.rate(load.current), mean(segment.seconds)
        if load.current.nodes and self._step >= load.recheck:
            # What another load has taught may be far off, and one comparison, too; plain decoding has to be beaten.
            load.begin_try(NOTHING, BURST + self._warming.steps(NOTHING, requests), load.lost(NOTHING) * step)
            load.recheck = self._step + load.patience
            load.patience = min(2 * load.patience, MOST_RECHECK)
            return
        chances: list[tuple[float, DraftSize, int]] = []
        for size in allowed:
            if size == load.current:
                continue
            hope = load.hope(size, self._step)
            length = BURST + self._warming.steps(size, requests)
            if not load.current.nodes and load.costs.uncertainty(size, self._step) < KNOWN_WELL:
                length = PROBE
            lost = load.lost(size)
            if hope > now and self._credit > lost * length * step:
                # When nothing is drafted, the cheapest question is the best.
                chances.append((-lost if length == PROBE else hope / now, size, length))
        if chances:
            _, size, length = max(chances)
            load.begin_try(size, length, load.lost(size) * step)
