"""What the ranks of a tensor-parallel target agree on while they draft: rank 0's word counts.

Ranks that ran other layers, or another number of passes, would wait for each other for ever. They draft from the same
logits and search with the same seed, but that has to hold to the last bit and in every step; so whether a chain goes
on, what a set scored and which suggestion is there come from one rank. With one rank nothing is sent.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vllm_specext.methods.swift.layers import SkipSet
from vllm_specext.methods.swift.search import Observation, Suggester


class Agreement:
    def __init__(self, group: Any) -> None:
        """``group`` is vLLM's of the tensor-parallel ranks."""
        self._group = group

    def on(self, value: Tensor) -> float:
        """Rank 0's ``value``, of one element."""
        return float(self._group.broadcast(value.float()))

    def on_suggestions_of(self, own: Suggester | None) -> Suggester:
        """A suggester for every rank that hears rank 0's ``own``; the others have none."""
        return _Shared(own, self._group)


class _Shared:
    def __init__(self, own: Suggester | None, group: Any) -> None:
        self._own = own
        self._group = group

    def ask(self, observations: Sequence[Observation]) -> None:
        if self._own is not None:
            self._own.ask(observations)

    def ready(self) -> SkipSet | None:
        found: SkipSet | None = self._group.broadcast_object(self._own.ready() if self._own is not None else None)
        return found
