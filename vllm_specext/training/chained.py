"""The training of drafters that read their own features in later passes, with gradients from one pass's input into the
pass before, and that learn tokens alone.

The loss is the cross-entropy against the target's distribution. The embedding and the head are the target's and stay as
they are; an output layer of the drafter's own is trained, and learns the distribution of the tokens that it scores. The
same seeds give the same drafter.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from vllm_specext.training.batches import Batch, FeatureBatches, made_ahead
from vllm_specext.training.head_loss import Alignment, HeadWeights, head_losses
from vllm_specext.training.logits import PLAIN, Logits, Scored
from vllm_specext.training.loop import fit
from vllm_specext.training.own_head import OwnHead
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.processes import is_first_process
from vllm_specext.training.run import Run, write_record
from vllm_specext.training.staged import StagedTraining
from vllm_specext.training.step import Progress, Sums, TrainingStep


@dataclass(frozen=True)
class ChainedTraining(StagedTraining):
    """How to train."""

    later_passes: float = 0.8
    """A pass's loss weighs this much of the one before."""
    align: int = 0
    """Best tokens in token-alignable training, as GRIFFIN has it: later passes learn only where the text's last tokens
    were among so many best of the drafter in the passes before, which are the contexts that a tree of it would be in.
    0: they learn everywhere."""


class ChainedStep(TrainingStep[Batch]):
    """As many passes over a batch as ``count`` says; the terms are every pass's loss, and its share of the first pass's
    positions."""

    def __init__(
        self, model: nn.Module, embedding: Tensor, head: Tensor, recipe: ChainedTraining, logits: Logits = PLAIN
    ) -> None:
        """``embedding`` and ``head`` ``[V, d]`` are the target's, frozen, and so is how it makes ``logits``. A server
        makes the drafter's plainly."""
        super().__init__()
        self.model = model
        self.embedding, self.head, self.recipe = embedding, head, recipe
        self.scored = Scored(target=logits)

    def count(self, progress: Progress) -> int:
        """Of passes."""
        return progress.stage

    def passes(self, embeddings: Tensor, batch: Batch, count: int) -> Iterator[Tensor]:
        """The head's inputs ``[B, L, d]`` in passes 1 to ``count`` over ``embeddings`` ``[B, L, d]``."""
        raise NotImplementedError

    def own_head(self) -> OwnHead | None:
        """The drafter's, where it has one."""
        return None

    def forward(self, batch: Batch, progress: Progress) -> Sums:
        count, recipe = self.count(progress), self.recipe
        with torch.autocast(self.head.device.type, dtype=torch.bfloat16, enabled=recipe.bfloat16):
            made = list(self.passes(F.embedding(batch.input_ids, self.embedding), batch, count))
            aligned = Alignment(batch.next_ids, batch.layout.positions, recipe.align) if recipe.align else None
            wanted, counted = batch.target_features, batch.counted
            how = HeadWeights(), aligned, self.scored
            losses = head_losses(self.head, made, wanted, counted, *how, own=self.own_head())
        weights = recipe.later_passes ** torch.arange(count, device=self.head.device)
        counts = losses.masks.sum(dim=(1, 2))
        terms = {"token": (losses.token, counts), "counted": (counts, counted.sum().expand(count))}
        return Sums(losses.loss * weights, counts, terms)

    def weight(self, batch: Batch) -> Tensor:
        return batch.counted.sum()


def train_chained(
    step: ChainedStep, packs: PackedBatches, out_dir: Path, run: Run | None, write: Callable[[Path], None]
) -> list[dict[str, Any]]:
    """Train the model of ``step`` in place on ``packs``, and ``write`` it to ``out_dir``.

    A training that was interrupted goes on where the state of ``run`` is. Returns the log, and writes it beside the
    checkpoint as ``training.json``.
    """
    settings = asdict(step.recipe)
    batches = FeatureBatches(packs, ahead=made_ahead(packs.device, run))
    log = fit(step, batches, step.recipe.stages(), replace(run or Run(), settings=settings))
    if is_first_process():
        write(out_dir)
        write_record(out_dir, {"recipe": settings, "log": log})
    return log
