"""Ranks that measured or were suggested something else go by what rank 0 says."""

from typing import Any

import torch
from torch import Tensor

from vllm_specext.methods.swift.search.agreement import Agreement
from vllm_specext.methods.swift.search.search import Search, SearchOptions
from vllm_specext.methods.swift.search.skip_set import SkipSet

LAYERS = 12


class Rank:
    """vLLM's group as one of two ranks sees it; what rank 0 sends stays in ``sent`` until rank 1 takes it."""

    def __init__(self, number: int, sent: list[Any]) -> None:
        self.number = number
        self.sent = sent

    def broadcast_object(self, value: Any) -> Any:
        if self.number == 0:
            self.sent.append(value)
            return value
        return self.sent.pop(0)

    def broadcast(self, value: Tensor) -> Tensor:
        received: Tensor = self.broadcast_object(value)
        return received


class Suggests:
    """Has a suggestion ready at every other call."""

    def __init__(self) -> None:
        self.calls = 0

    def ask(self, observations: Any) -> None:
        pass

    def ready(self) -> SkipSet | None:
        self.calls += 1
        return SkipSet.of(LAYERS, range(self.calls % 7, self.calls % 7 + 9)) if self.calls % 2 else None


def search_of(agreement: Agreement, local: Suggests | None) -> Search:
    options = SearchOptions(swift_bayes_interval=3, swift_max_steps=60)
    return Search(SkipSet.uniform(LAYERS), options, agreement.on_suggestions_of(local))


def course(agreed: bool) -> tuple[list[SkipSet], list[SkipSet]]:
    """The active sets of two ranks that score every candidate differently and of which only one has suggestions."""
    sent: list[Any] = []
    ranks = [Agreement(Rank(number if agreed else 0, sent)) for number in (0, 1)]
    searches = [search_of(ranks[0], Suggests()), search_of(ranks[1], None)]
    scores = [torch.Generator().manual_seed(number) for number in (0, 1)]
    actives: tuple[list[SkipSet], list[SkipSet]] = ([], [])
    for _ in range(60):
        for rank, search, random, active in zip(ranks, searches, scores, actives, strict=True):
            candidate = search.propose()
            assert candidate is not None
            score, incumbent = (rank.on(0.9 * torch.rand((), generator=random)) for _ in range(2))
            search.settle(candidate, score, incumbent if search.needs_incumbent(candidate, score) else None)
            active.append(search.active)
    return actives


def test_both_ranks_take_the_same_course() -> None:
    first, second = course(agreed=True)
    assert first == second
    assert len(set(first)) > 2


def test_on_their_own_they_would_not() -> None:
    first, second = course(agreed=False)
    assert first != second
