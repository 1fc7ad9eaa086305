"""The search for the set of skipped sub-layers that drafts best, as a state machine that the engine drives.

The search never looks at the clock, starts no thread and knows neither vLLM nor torch. With the same seed, scores and
suggestions it takes the same course. A step of the search is

1. ``propose``: the search names a set to evaluate, or ``None`` if it has stopped;
2. the engine measures the matchness of this set on some contexts, which is the share of their tokens that a draft with
   the set gets right; where ``needs_incumbent`` says so, it also measures the active set on the same contexts;
3. ``settle``: the proposed set becomes the active set if it was the better of the two on the same contexts, and better
   than the active set's score so far.

A step that the engine cannot finish is not settled, and the same set is proposed again. The first proposed set is the
active set itself, so that only better ones replace it (the published code never scores its first set). The others are
drawn at random, but every ``swift_bayes_interval`` steps the search takes a Bayesian suggestion. It asks for the
suggestion one interval earlier, and nothing waits for it: if it comes too late, the next such step takes it. Only then
does the course depend on how fast the machine is.

The search stops when the active set's score is above ``swift_max_score`` and is not that of a single context (the
published code stops at the first), when more than 300 sets in a row were no better, or after ``swift_max_steps``.
Then it watches the acceptance of the drafts. If acceptance falls by more than a tenth, the search starts anew from the
active set.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from vllm_specext.methods.swift.search.acceptance import AcceptanceWatch, DraftOutcome
from vllm_specext.methods.swift.search.skip_set import SkipSet, num_skipped, num_variables

TOLERANCE = 300
"""Proposed sets in a row that may be no better, as published."""

SEED = 2024
"""The published seed."""

INCUMBENT_WEIGHT = 0.25
"""The weight of the newest score in the moving average of the active set's scores; the first few have equal weights.
The score that a set was chosen for is often luck, and the average soon forgets it."""

INCUMBENT_INTERVAL = 10
"""Steps after which the active set is scored again although no proposed set seemed better. Contexts change, and a score
from easier ones would keep every other set away."""

SCORINGS = 3
"""Scores of the active set before they may end the search. They are `INCUMBENT_INTERVAL` steps apart where no set seems
better."""

MAX_OBSERVATIONS = 300
"""The newest observations, which the suggestion is made from. Its cost grows with the third power of their number."""

MAX_HISTORY = 10_000


class Kind(StrEnum):
    START = "start"
    RANDOM = "random"
    SUGGESTED = "suggested"


@dataclass(frozen=True)
class ProposedSet:
    """A set that the engine is asked to evaluate."""

    step: int
    """The step's number. A restart does not set it back."""
    skipped: SkipSet
    kind: Kind


@dataclass(frozen=True)
class Step:
    """A settled step, for pictures and metrics."""

    number: int
    kind: Kind
    score: float
    best: float
    """The active set's score after the step."""
    adopted: bool


Observation = tuple[SkipSet, float]
"""A set and its score."""


class Suggester(Protocol):
    """Makes suggestions from observations, beside the engine."""

    def ask(self, observations: Sequence[Observation]) -> None:
        """Begin a suggestion and return at once. Nothing happens if one is under way."""

    def ready(self) -> SkipSet | None:
        """Give the suggestion that was asked for, once. ``None`` if there is none yet."""


@dataclass(frozen=True)
class SearchOptions:
    """The search's keys of the speculative configuration."""

    swift_skip_ratio: float = 0.45
    swift_max_score: float = 0.95
    swift_max_steps: int = 1000
    """Sets that are evaluated at most. 0 keeps the set that the search starts with."""
    swift_bayes_interval: int = 25
    """Steps from one suggestion to the next. 0 makes no suggestions."""


class Search:
    active: SkipSet
    version: int
    """The active set's number, which grows by 1 when the set changes."""
    steps: int
    """Steps settled since the search last began, without the one that scores its first set."""
    best: float | None
    """The active set's score, a moving average. ``None`` until it is scored."""
    _fruitless: int
    _unscored: int
    _scorings: int
    _observations: deque[Observation]
    _pending: ProposedSet | None

    def __init__(
        self,
        start: SkipSet,
        options: SearchOptions,
        suggester: Suggester,
        *,
        seed: int = SEED,
    ) -> None:
        self.active = start
        self.version = 0
        self.restarts = 0
        self.history: deque[Step] = deque(maxlen=MAX_HISTORY)
        self.acceptance = AcceptanceWatch()
        self._options = options
        self._suggester = suggester
        self._variables = num_variables(start.layers)
        self._num_skipped = num_skipped(start.layers, options.swift_skip_ratio)
        self._random = random.Random(seed)
        self._total_steps = 0
        self._begin()

    @property
    def stopped(self) -> bool:
        """Whether the search has stopped. The active set then stays until acceptance falls."""
        return (
            self.steps >= self._options.swift_max_steps
            or self._fruitless > TOLERANCE
            or (self.best is not None and self.best > self._options.swift_max_score and self._scorings >= SCORINGS)
        )

    def propose(self) -> ProposedSet | None:
        """Name the set to evaluate, the same one until it is settled. ``None`` if the search has stopped."""
        if self.stopped:
            return None
        if self._pending is None:
            self._pending = self._next()
        return self._pending

    def needs_incumbent(self, proposed: ProposedSet, score: float) -> bool:
        """Whether the active set has to be scored on the contexts that gave the proposed set this ``score``."""
        if proposed is not self._pending or self.best is None:
            return False
        return score > self.best or self._unscored >= INCUMBENT_INTERVAL

    def settle(self, proposed: ProposedSet, score: float, incumbent_score: float | None = None) -> bool:
        """Take the scores, and say whether the proposed set is now the active one. A set that was proposed before a
        restart does not count."""
        if proposed is not self._pending:
            return False
        self._pending = None
        self._observations.append((proposed.skipped, score))
        adopted = False
        if self.best is None:
            self.best, self._scorings = score, 1
        elif incumbent_score is not None:
            # One comparison is often luck, so the proposed set also has to beat what is known of the active set.
            adopted = score > max(incumbent_score, self.best)
            if adopted:
                self.active, self.best, self._scorings = proposed.skipped, score, 1
                self.version += 1
            else:
                self._scorings += 1
                self.best += max(INCUMBENT_WEIGHT, 1 / self._scorings) * (incumbent_score - self.best)
        if proposed.kind is not Kind.START:
            self.steps += 1
            self._fruitless = 0 if adopted else self._fruitless + 1
            self._unscored = 0 if incumbent_score is not None else self._unscored + 1
        self.history.append(Step(proposed.step, proposed.kind, score, self.best, adopted))
        self._total_steps += 1
        if self.stopped:
            self.acceptance = AcceptanceWatch()
        return adopted

    def note(self, outcome: DraftOutcome) -> bool:
        """Take what verification found of a draft, and say whether the search starts anew for it."""
        self.acceptance.note(outcome)
        if not (self.stopped and self._options.swift_max_steps and self.acceptance.has_fallen):
            return False
        self.restarts += 1
        self._begin()
        return True

    def _begin(self) -> None:
        """Search from the active set, of which nothing is known any more. A suggestion that is still under way comes
        from earlier observations; it is a set like any other."""
        self.steps, self.best = 0, None
        self._fruitless = self._unscored = self._scorings = 0
        self._observations = deque(maxlen=MAX_OBSERVATIONS)
        self._pending = None

    def _next(self) -> ProposedSet:
        if self.best is None:
            return ProposedSet(self._total_steps, self.active, Kind.START)
        interval, suggestion = self._options.swift_bayes_interval, None
        if interval and (self.steps + 1) % interval == 0:
            suggestion = self._suggester.ready()
            self._suggester.ask(tuple(self._observations))
        if suggestion is not None and suggestion != self.active:
            return ProposedSet(self._total_steps, suggestion, Kind.SUGGESTED)
        return ProposedSet(self._total_steps, self._draw(), Kind.RANDOM)

    def _draw(self) -> SkipSet:
        """Draw a set at random, but not the active set."""
        while True:
            variables = self._random.sample(range(self._variables), self._num_skipped)
            if (drawn := SkipSet.of(self.active.layers, variables)) != self.active:
                return drawn
