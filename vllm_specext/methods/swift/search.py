"""The search for the set of skipped sub-layers that drafts best, as a state machine that the engine drives.

It never looks at the clock, starts no thread and knows neither vLLM nor torch: with the same seed, scores and
suggestions it takes the same course. A step of the search is

1. ``propose``: the candidate to evaluate, ``None`` while there is none (the search has stopped);
2. the engine measures the candidate's matchness on some contexts: the share of their tokens that a draft with this set
   gets right; where ``needs_incumbent`` says so, also that of the active set, on the same contexts;
3. ``settle``: the candidate becomes the active set where it was the better of the two on the same contexts, and better
   than the active set's score so far.

A step that the engine cannot finish is simply not settled: the same candidate is proposed again. The first candidate
is the active set itself, so that it is replaced by better ones only (the published code never scores its first set).
Candidates are drawn at random; every ``swift_bayes_interval`` steps a Bayesian suggestion takes the place of one. It is
asked for one interval before and nothing waits for it: where it comes too late, the next such step takes it, and only
then does the course depend on how fast the machine is.

The search stops when the active set's score is above ``swift_max_score`` and no longer that of a single context (the
published code stops at the first), when more than 300 candidates in a row were no better, or after ``swift_max_steps``.
From then on it watches the acceptance of the drafts, and starts anew from the active set where that falls by more than
a tenth.
"""

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from vllm_specext.methods.swift.acceptance import AcceptanceWatch, Verification
from vllm_specext.methods.swift.layers import SkipSet, num_skipped, num_variables

TOLERANCE = 300
"""Candidates in a row that may be no better, as published."""

SEED = 2024
"""As published."""

INCUMBENT_WEIGHT = 0.25
"""Of the newest score in the moving average of the active set's scores, which is the plain mean of the first few. The
score that a set was chosen for is often luck; the average soon forgets it."""

INCUMBENT_INTERVAL = 10
"""Steps after which the active set is scored again although no candidate seemed better: contexts change, and a score
from easier ones would keep every candidate away."""

SCORINGS = 3
"""Of the active set before they may end the search; `INCUMBENT_INTERVAL` steps apart where nothing seems better."""

MAX_OBSERVATIONS = 300
"""The suggestion looks at the newest; its cost grows with the third power of their number."""

MAX_HISTORY = 10_000


class Kind(StrEnum):
    START = "start"
    RANDOM = "random"
    SUGGESTED = "suggested"


@dataclass(frozen=True)
class Candidate:
    step: int
    """Of the whole search, counted on over restarts."""
    skipped: SkipSet
    kind: Kind


@dataclass(frozen=True)
class Step:
    """A settled step, for pictures and metrics."""

    number: int
    kind: Kind
    score: float
    best: float
    """The active set's score after it."""
    adopted: bool


Observation = tuple[SkipSet, float]


class Suggester(Protocol):
    def ask(self, observations: Sequence[Observation]) -> None:
        """Begin a suggestion and return at once; nothing happens where one is under way."""

    def ready(self) -> SkipSet | None:
        """The suggestion asked for, once; ``None`` where there is none yet."""


@dataclass(frozen=True)
class SearchOptions:
    """Keys of the speculative configuration."""

    swift_skip_ratio: float = 0.45
    swift_max_score: float = 0.95
    swift_max_steps: int = 1000
    """0 keeps the set that the search starts with."""
    swift_bayes_interval: int = 25
    """0 leaves suggestions out."""


class Search:
    active: SkipSet
    version: int
    """Of the active set; grows when it changes."""
    steps: int
    """Settled since the search last began, its start not counted."""
    best: float | None
    """The active set's score, a moving average; ``None`` until it is scored."""
    _fruitless: int
    _unscored: int
    _scorings: int
    _observations: deque[Observation]
    _pending: Candidate | None

    def __init__(
        self,
        start: SkipSet,
        options: SearchOptions,
        suggester: Suggester,
        *,
        seed: int = SEED,
        margin: float = 0.0,
    ) -> None:
        """``margin``: by how much a candidate has to be better than the active set."""
        self.active = start
        self.version = 0
        self.restarts = 0
        self.history: deque[Step] = deque(maxlen=MAX_HISTORY)
        self.acceptance = AcceptanceWatch()
        self._options = options
        self._suggester = suggester
        self._margin = margin
        self._variables = num_variables(start.layers)
        self._num_skipped = num_skipped(start.layers, options.swift_skip_ratio)
        self._random = random.Random(seed)
        self._total_steps = 0
        self._begin()

    @property
    def stopped(self) -> bool:
        """Nothing is searched for; the active set stays until acceptance falls."""
        return (
            self.steps >= self._options.swift_max_steps
            or self._fruitless > TOLERANCE
            or (self.best is not None and self.best > self._options.swift_max_score and self._scorings >= SCORINGS)
        )

    def propose(self) -> Candidate | None:
        """The same one until it is settled."""
        if self.stopped:
            return None
        if self._pending is None:
            self._pending = self._next()
        return self._pending

    def needs_incumbent(self, candidate: Candidate, score: float) -> bool:
        """Whether the active set has to be scored on the contexts that gave the candidate this ``score``."""
        if candidate is not self._pending or self.best is None:
            return False
        return score > self.best + self._margin or self._unscored >= INCUMBENT_INTERVAL

    def settle(self, candidate: Candidate, score: float, incumbent_score: float | None = None) -> bool:
        """Whether the candidate is the active set from now on. A candidate from before a restart counts nowhere."""
        if candidate is not self._pending:
            return False
        self._pending = None
        self._observations.append((candidate.skipped, score))
        adopted = False
        if self.best is None:
            self.best, self._scorings = score, 1
        elif incumbent_score is not None:
            # One comparison is often luck, so the candidate also has to beat what is known of the active set.
            adopted = score > max(incumbent_score, self.best) + self._margin
            if adopted:
                self.active, self.best, self._scorings = candidate.skipped, score, 1
                self.version += 1
            else:
                self._scorings += 1
                self.best += max(INCUMBENT_WEIGHT, 1 / self._scorings) * (incumbent_score - self.best)
        if candidate.kind is not Kind.START:
            self.steps += 1
            self._fruitless = 0 if adopted else self._fruitless + 1
            self._unscored = 0 if incumbent_score is not None else self._unscored + 1
        self.history.append(Step(candidate.step, candidate.kind, score, self.best, adopted))
        self._total_steps += 1
        if self.stopped:
            self.acceptance = AcceptanceWatch()
        return adopted

    def note(self, verification: Verification) -> bool:
        """True where the search starts anew for it."""
        self.acceptance.note(verification)
        if not (self.stopped and self._options.swift_max_steps and self.acceptance.has_fallen):
            return False
        self.restarts += 1
        self._begin()
        return True

    def _begin(self) -> None:
        """Search from the active set, of which nothing is known any more. A suggestion that is still under way may come
        from what was observed before; it is a candidate like any other."""
        self.steps, self.best = 0, None
        self._fruitless = self._unscored = self._scorings = 0
        self._observations = deque(maxlen=MAX_OBSERVATIONS)
        self._pending = None

    def _next(self) -> Candidate:
        if self.best is None:
            return Candidate(self._total_steps, self.active, Kind.START)
        interval, suggestion = self._options.swift_bayes_interval, None
        if interval and (self.steps + 1) % interval == 0:
            suggestion = self._suggester.ready()
            self._suggester.ask(tuple(self._observations))
        if suggestion is not None and suggestion != self.active:
            return Candidate(self._total_steps, suggestion, Kind.SUGGESTED)
        return Candidate(self._total_steps, self._draw(), Kind.RANDOM)

    def _draw(self) -> SkipSet:
        """At random, but not the active set."""
        while True:
            variables = self._random.sample(range(self._variables), self._num_skipped)
            if (drawn := SkipSet.of(self.active.layers, variables)) != self.active:
                return drawn
