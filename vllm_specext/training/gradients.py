"""The gradient of one optimizer step: of some batches one after the other, each shared by all processes."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from vllm_specext.training.step import Progress, Sums, TrainingStep

if TYPE_CHECKING:
    from accelerate import Accelerator

B = TypeVar("B")

Terms = dict[str, tuple[Tensor, Tensor]]


def add_gradients(
    accelerator: "Accelerator", wrapped: nn.Module, step: TrainingStep[B], batches: Sequence[B], progress: Progress
) -> list[Terms]:
    """Add the gradients of ``batches`` to the parameters; returns each one's terms over all processes, with the loss.

    ``wrapped`` is ``step`` as accelerate has prepared it: processes average their gradients with the last batch.
    """
    parts = batch_parts(accelerator, [step.weight(batch) for batch in batches])
    found: list[Terms] = []
    for batch, part in zip(batches, parts, strict=True):
        last = len(found) == len(batches) - 1
        with nullcontext() if last else accelerator.no_sync(wrapped):
            sums: Sums = wrapped(batch, progress)
            whole = totals(accelerator, sums)
            counts = whole.counts.clamp(min=1).to(sums.loss.dtype)
            # Gradients are averaged over the processes: as many times the gradient of this one's share of the sum.
            accelerator.backward((sums.loss / counts).sum() * (part * accelerator.num_processes))
        found.append({"loss": ((whole.loss / counts).sum() * part, part), **whole.terms})
    return found


def totals(accelerator: "Accelerator", sums: Sums) -> Sums:
    """``sums``, which have no gradient then, of all processes together."""
    numbers = [sums.loss.detach(), sums.counts, *(x for pair in sums.terms.values() for x in pair)]
    flat = accelerator.reduce(torch.cat([x.double().flatten() for x in numbers]), reduction="sum")
    parts = [x.view_as(like) for x, like in zip(flat.split([x.numel() for x in numbers]), numbers, strict=True)]
    pairs = zip(parts[2::2], parts[3::2], strict=True)
    return Sums(parts[0], parts[1], dict(zip(sums.terms, pairs, strict=True)))


def batch_parts(accelerator: "Accelerator", weights: list[Tensor]) -> Tensor:
    """The part of an optimizer step that each of its batches makes, ``[batches]``: the share of its weight in all
    processes."""
    if len(weights) == 1:
        return weights[0].new_ones(1, dtype=torch.float32)
    summed = accelerator.reduce(torch.stack(weights).double().to(accelerator.device), reduction="sum")
    parts: Tensor = (summed / summed.sum().clamp(min=1)).float()
    return parts
