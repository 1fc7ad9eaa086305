"""Steps of an engine that nobody runs: what they take, what they accept, and who decides how much is drafted.

What a step took is drawn around its cost, and what a choice was worth is counted in costs, so that luck with the noise
counts for nobody.
"""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from vllm_specext.tree.budget import TreeShape, largest_schedule, sizes_up_to
from vllm_specext.tree.draft_choice import DraftChoice
from vllm_specext.tree.draft_size import NOTHING, DraftSize, draft_sizes

NOISE = 0.1
"""Durations of steps are spread by so much to either side."""

FIRST_STEPS, FIRST_TIME = 4, 4.0
"""Steps in which so many requests draft a number of tokens for the first time, and how many times as long they take:
passes are compiled or recorded."""

DISTURBED, DISTURBANCE = 0.003, 10.0
"""Share of the steps in which something else takes the time, and how many times as long they are."""


class Acceptance(Protocol):
    def __call__(self, level: int, step: int) -> float:
        """Probability that a chain's token is accepted on a ``level``, from 0 on, if those before it were."""


@dataclass(frozen=True)
class Drafts:
    """A method, as far as a scheduler notices it."""

    most: int
    """Most tokens of a draft."""
    acceptance: Acceptance
    tree: TreeShape | None = None
    """The largest tree, ``None`` where drafts are chains."""
    widening: float = 0.2
    """Effective width of a tree: so many nodes per level, to this power."""

    any_depth: bool = False
    """Whether the depth of trees is chosen too."""

    def sizes(self) -> list[DraftSize]:
        """What may be drafted."""
        return draft_sizes(sizes_up_to(self.most), self.tree, self.any_depth)

    def chances(self, size: DraftSize, step: int) -> list[float]:
        """Probability of acceptance of each level of a draft, given the levels before."""
        width = max(1.0, size.nodes / max(size.levels, 1)) ** self.widening
        return [1 - (1 - self.acceptance(level, step)) ** width for level in range(size.levels)]


Cost = Callable[[int, DraftSize, DraftSize], float]
"""Seconds of a step of so many requests that verifies a draft of a size of each, and drafts one of another size."""


@dataclass(frozen=True)
class Outcome:
    seconds: Sequence[float]
    """What each step costs."""
    tokens: Sequence[float]
    """How many tokens it may be expected to emit."""
    drafted: Sequence[DraftSize]
    """What it drafted for each request."""

    def speed(self, first: int = 0, last: int | None = None) -> float:
        """Tokens per second of the steps from ``first`` on, before ``last``."""
        return sum(self.tokens[first:last]) / sum(self.seconds[first:last])

    @property
    def usual(self) -> DraftSize:
        """What was drafted most often in the second half."""
        return Counter(self.drafted[len(self.drafted) // 2 :]).most_common(1)[0][0]


@dataclass
class Simulation:
    drafts: Drafts
    cost: Cost
    load: Callable[[int], int]
    """Number of running requests by step."""
    seed: int = 0
    most_requests: int = 256
    slope: float = 0.1
    first: int = 63
    slow_changes: int = 1
    """How many changes to a number of tokens begin with such first steps."""
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def sizes(self, requests: int) -> list[DraftSize]:
        """What may be drafted for so many requests."""
        return [size for size in self.drafts.sizes() if size.nodes <= self.most()[requests]]

    def fixed(self, size: DraftSize, steps: int) -> Outcome:
        """The same for every step."""
        return self._run(steps, lambda requests: size, None)

    def chosen(self, steps: int) -> Outcome:
        """What the choice makes of it."""
        choice = DraftChoice(self.most(), self.drafts.sizes(), self.first, self.slope)
        return self._run(steps, choice.size, choice)

    def most(self) -> list[int]:
        """The most that may be drafted, by number of requests."""
        most = [0] * (self.most_requests + 1)
        for first, last, nodes in largest_schedule(self.drafts.most):
            for requests in range(first, min(last, self.most_requests) + 1):
                most[requests] = nodes
        return most

    def _run(self, steps: int, size: Callable[[int], DraftSize], choice: DraftChoice | None) -> Outcome:
        seconds, tokens, drafted = [], [], []
        verified, before = NOTHING, 0
        asked: DraftSize | None = None
        changes, since = Counter[tuple[DraftSize, int]](), 0
        for step in range(steps):
            requests, last = self.load(step), asked
            asked = size(requests)
            since = 1 if (asked, requests) != (last, before) else since + 1
            changes[asked, requests] += since == 1
            cost = self.cost(requests, verified, asked)
            chances = self.drafts.chances(verified, step)
            seconds.append(cost)
            tokens.append(requests * (1 + expected(chances)))
            drafted.append(asked)
            if choice is not None:
                accepted = Counter(self._accepted(chances) for _ in range(requests))
                is_slow = since <= FIRST_STEPS and changes[asked, requests] <= self.slow_changes
                first = FIRST_TIME if is_slow else 1.0
                choice.note(requests, asked, accepted, first * self._noisy(cost) if requests == before else None)
            verified, before = asked, requests
        return Outcome(seconds, tokens, drafted)

    def _accepted(self, chances: Sequence[float]) -> int:
        for level, chance in enumerate(chances):
            if self._random.random() >= chance:
                return level
        return len(chances)

    def _noisy(self, cost: float) -> float:
        disturbed = DISTURBANCE if self._random.random() < DISTURBED else 1.0
        return cost * disturbed * self._random.uniform(1 - NOISE, 1 + NOISE)


def expected(chances: Sequence[float]) -> float:
    whole, tokens = 1.0, 0.0
    for chance in chances:
        whole *= chance
        tokens += whole
    return tokens


def constant(rate: float, fall: float = 0.97) -> Acceptance:
    """An acceptance that falls by a factor from level to level, and does not change."""
    return lambda level, step: rate * fall**level


def changing(rates: Mapping[int, float], fall: float = 0.97) -> Acceptance:
    """Acceptances of the first level by the step from which on they hold."""

    def acceptance(level: int, step: int) -> float:
        return rates[max(first for first in rates if first <= step)] * fall**level

    return acceptance


def fixed_outcomes(simulation: Simulation, requests: int, steps: int) -> Iterator[tuple[DraftSize, Outcome]]:
    """What each size brings that drafts for so many requests may have."""
    for size in simulation.sizes(requests):
        yield size, simulation.fixed(size, steps)
