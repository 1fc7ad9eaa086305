"""What a method tells the trainer about a step: its batches, its loss, and what is logged."""

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from torch import Tensor, nn

B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)


@dataclass(frozen=True)
class Progress:
    """The place of a step in a training. ``stage`` and ``step`` of the stage count from 1; ``done`` is the share
    of the stage that was over before this step."""

    stage: int
    step: int
    done: float


class Batches(Protocol[B_co]):
    """Endless batches. Everything random about a batch is drawn here, from generators that the state has."""

    def next(self, progress: Progress) -> B_co: ...

    def state_dict(self) -> dict[str, Any]:
        """Tensors, numbers and text."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TrainingStep(nn.Module, Generic[B]):
    """A method's part of a training step. All that touches ``model``'s parameters happens in ``forward``."""

    model: nn.Module
    """The module that is trained; others are frozen."""

    def forward(self, batch: B, progress: Progress) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss, and by name the detached terms to log, each a scalar or ``[passes]``."""
        raise NotImplementedError

    def measure(self, progress: Progress) -> dict[str, Any]:
        """Further figures for a log entry, beside the terms' means."""
        return {}
