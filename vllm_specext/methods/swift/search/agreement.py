"""What the ranks of a tensor-parallel target agree on while they draft: rank 0 decides.

Ranks that ran different layers, or a different number of passes, would wait for each other for ever. They draft from
the same logits and search with the same seed, but that would have to be equal to the last bit and in every step. So one
rank decides whether a chain goes on, what a set scored and which suggestion is there. With one rank nothing is sent.
"""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from vllm_specext.methods.swift.search.search import Observation, Suggester
from vllm_specext.methods.swift.search.skip_set import SkipSet


class Agreement:
    """Values that all tensor-parallel ranks take from rank 0."""

    def __init__(self, group: Any) -> None:
        """``group`` is vLLM's group of the tensor-parallel ranks."""
        self._group = group

    def on(self, value: Tensor) -> float:
        """The ``value``, of one element, that rank 0 has."""
        return float(self._group.broadcast(value.float()))

    def on_suggestions_of(self, local: Suggester | None) -> Suggester:
        """A suggester for every rank that gives what rank 0's ``local`` one suggests; the other ranks have none."""
        return _Shared(local, self._group)


class _Shared:
    def __init__(self, local: Suggester | None, group: Any) -> None:
        self._local = local
        self._group = group

    def ask(self, observations: Sequence[Observation]) -> None:
        if self._local is not None:
            self._local.ask(observations)

    def ready(self) -> SkipSet | None:
        found: SkipSet | None = self._group.broadcast_object(self._local.ready() if self._local is not None else None)
        return found
