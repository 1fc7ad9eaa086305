"""What a method tells the trainer about a step: its batches, its loss, and what is logged."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor, nn

from vllm_specext.errors import ConfigurationError

B = TypeVar("B")
B_co = TypeVar("B_co", covariant=True)
S = TypeVar("S", bound=Sequence[Any] | Tensor)


@dataclass(frozen=True)
class Progress:
    """The place of a step in a training. ``stage`` and ``step`` of the stage count from 1; ``done`` is the share
    of the stage that was over before this step."""

    stage: int
    step: int
    done: float


@dataclass(frozen=True)
class Share:
    """The part of every batch that one of several processes computes."""

    process: int = 0
    processes: int = 1

    def of(self, batch: S) -> S:
        """This process's entries, as many as every other's. Batches of another size are refused."""
        if len(batch) % self.processes:
            raise ConfigurationError(
                f"a batch has {len(batch)} entries, which {self.processes} processes cannot share evenly; expected a "
                "multiple of the number of processes."
            )
        size = len(batch) // self.processes
        part: S = batch[self.process * size : (self.process + 1) * size]  # type: ignore[assignment]
        return part


class Sums(NamedTuple):
    """What one process computes of a batch: sums, which the trainer divides by the counts of all processes. So a
    position weighs the same, whatever else is in the batch that its process has."""

    loss: Tensor
    """Sums of the losses to add up, a scalar or ``[n]``."""
    counts: Tensor
    """Over how many positions each goes, in the same shape."""
    terms: dict[str, tuple[Tensor, Tensor]]
    """To log, by name: detached sums and their counts, scalars or ``[passes]``."""

    @classmethod
    def of_means(cls, loss: Tensor, terms: dict[str, Tensor]) -> "Sums":
        """Of losses that are means over as many positions in every process."""
        one = torch.ones_like(loss, requires_grad=False)
        return cls(loss, one, {name: (term.detach(), torch.ones_like(term)) for name, term in terms.items()})


class Batches(Protocol[B_co]):
    """Endless batches, the same for the same seed and the same place, however many processes share each."""

    def next(self, progress: Progress, share: Share) -> B_co: ...

    def state_dict(self) -> dict[str, Any]:
        """The place: tensors, numbers and text, the same in every process."""

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class TrainingStep(nn.Module, Generic[B]):
    """A method's part of a training step. All that touches ``model``'s parameters happens in ``forward``: with several
    processes only those gradients are averaged."""

    model: nn.Module
    """The module that is trained; others are frozen."""

    def forward(self, batch: B, progress: Progress) -> Sums:
        raise NotImplementedError

    def weight(self, batch: B) -> Tensor:
        """How much this process's part of ``batch`` counts among those that make one optimizer step: its positions in
        the loss, as far as they are known before."""
        return torch.ones(())

    def measure(self, progress: Progress) -> dict[str, Any]:
        """Further figures for a log entry, beside the terms' means."""
        return {}
