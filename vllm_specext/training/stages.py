"""The stages of a training: how long each is, its optimizers and learning rates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import nn
from torch.optim import Optimizer

from vllm_specext.training.step import Progress


class Length(Protocol):
    """How long a stage is, and when it is logged."""

    @property
    def total(self) -> float:
        """The whole length, in ``unit``."""

    @property
    def unit(self) -> str: ...

    def done(self, steps: int, seconds: float) -> float:
        """The share of the stage that is over after so many steps and seconds of processor time."""

    def logs(self, steps: int, before: float, after: float) -> bool:
        """Whether there is a log entry after the step that brought the share from ``before`` to ``after``."""


@dataclass(frozen=True)
class Steps:
    """A stage of ``total`` steps, logged after every ``log_every`` and after the last."""

    total: int
    log_every: int = 50
    unit: str = "step"

    def done(self, steps: int, seconds: float) -> float:
        return min(steps / self.total, 1.0) if self.total else 1.0

    def logs(self, steps: int, before: float, after: float) -> bool:
        return steps % self.log_every == 0 or after == 1


@dataclass(frozen=True)
class ProcessorTime:
    """A stage of ``total`` seconds of this process's time, logged ``entries`` times."""

    total: float
    entries: int
    unit: str = "s"

    def done(self, steps: int, seconds: float) -> float:
        return min(seconds / self.total, 1.0)

    def logs(self, steps: int, before: float, after: float) -> bool:
        return int(after * self.entries) > int(before * self.entries)


@dataclass(frozen=True)
class Stage:
    """A part of a training that has optimizers and learning rates of its own."""

    length: Length
    optimizers: Callable[[nn.Module], list[Optimizer]]
    """Makes the stage's optimizers for the model, at the full learning rates."""
    rate: Callable[[Progress], float]
    """The factor of all learning rates in a step."""
    clip: Callable[[list[nn.Parameter]], object]
    """Clips the gradients in place."""
