"""Searches for tests, with suggestions that are prepared and scores that are given."""

from collections.abc import Callable, Sequence

from vllm_specext.methods.swift.search.acceptance import DraftOutcome
from vllm_specext.methods.swift.search.search import Observation, ProposedSet, Search, SearchOptions
from vllm_specext.methods.swift.search.skip_set import SkipSet

LAYERS = 12
START = SkipSet.uniform(LAYERS)


class NoSuggestions:
    def ask(self, observations: Sequence[Observation]) -> None: ...

    def ready(self) -> SkipSet | None:
        return None


class PreparedSuggestions(NoSuggestions):
    """The next one is ready as soon as it is asked for, or never."""

    def __init__(self, *suggestions: SkipSet | None) -> None:
        self.asked: list[tuple[Observation, ...]] = []
        self._coming = list(suggestions)
        self._ready: SkipSet | None = None

    def ask(self, observations: Sequence[Observation]) -> None:
        self.asked.append(tuple(observations))
        if self._coming:
            self._ready = self._coming.pop(0)

    def ready(self) -> SkipSet | None:
        ready, self._ready = self._ready, None
        return ready


def search(suggester: NoSuggestions | None = None, seed: int = 0, **options: float) -> Search:
    return Search(START, SearchOptions(**options), suggester or NoSuggestions(), seed=seed)  # type: ignore[arg-type]


def step(searching: Search, score: float, incumbent_score: float | None = None) -> tuple[ProposedSet, bool]:
    """As the engine does it; ``incumbent_score`` is what the active set would get on the same contexts, if scored."""
    proposed = searching.propose()
    assert proposed is not None
    wanted = searching.needs_incumbent(proposed, score)
    return proposed, searching.settle(proposed, score, incumbent_score if wanted else None)


def run(searching: Search, score_of: Callable[[SkipSet], float], steps: int = 10_000) -> list[ProposedSet]:
    """Until it stops; a set's score is the same on all contexts."""
    seen = []
    while len(seen) < steps and (proposed := searching.propose()) is not None:
        active = searching.active
        score = score_of(proposed.skipped)
        incumbent = score_of(active) if searching.needs_incumbent(proposed, score) else None
        searching.settle(proposed, score, incumbent)
        seen.append(proposed)
    return seen


def chain(right: int, reached: int) -> DraftOutcome:
    return DraftOutcome(accepted=right, depth=reached, right=right, reached=reached)
