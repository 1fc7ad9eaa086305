"""EAGLE-3's training, in stages: stage ``j`` makes ``j`` passes over each batch, of which the later ones read the
drafter's own features, with gradients from one pass's input into the pass before.

The loss is the cross-entropy against the target's distribution. The embedding and the head are the target's and stay as
they are. The same seeds give the same drafter.
"""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.training.batches import Batch, FeatureBatches, made_ahead
from vllm_specext.training.eagle3.checkpoint import write_checkpoint
from vllm_specext.training.eagle3.model import Eagle3Drafter
from vllm_specext.training.eagle3.passes import training_passes
from vllm_specext.training.head_loss import Alignment, HeadWeights, head_losses
from vllm_specext.training.logits import PLAIN, Logits, Scored
from vllm_specext.training.loop import fit
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.processes import is_first_process
from vllm_specext.training.run import Run, write_record
from vllm_specext.training.staged import StagedTraining
from vllm_specext.training.step import Progress, Sums, TrainingStep


@dataclass(frozen=True)
class Eagle3Training(StagedTraining):
    """How to train."""

    later_passes: float = 0.8
    """A pass's loss weighs this much of the one before (as in the code that trained the released checkpoints)."""
    align: int = 0
    """Best tokens in token-alignable training, as GRIFFIN has it: later passes learn only where the text's last tokens
    were among so many best of the drafter in the passes before, which are the contexts that a tree of it would be in.
    0: they learn everywhere."""


class Eagle3Step(TrainingStep[Batch]):
    """``progress.stage`` passes over a batch; the terms are every pass's loss, and its share of the first pass's
    positions."""

    def __init__(
        self,
        model: Eagle3Drafter,
        embedding: Tensor,
        head: Tensor,
        recipe: Eagle3Training,
        logits: Logits = PLAIN,
    ) -> None:
        """``embedding`` and ``head`` ``[V, d]`` are the target's, frozen, and so is how it makes ``logits``. The
        drafter's config.json names neither cap nor scale, so that a server makes its logits plainly."""
        super().__init__()
        self.model: Eagle3Drafter = model
        self.embedding, self.head, self.recipe = embedding, head, recipe
        self.scored = Scored(target=logits)

    def forward(self, batch: Batch, progress: Progress) -> Sums:
        passes, recipe = progress.stage, self.recipe
        assert batch.aux is not None
        with torch.autocast(self.head.device.type, dtype=torch.bfloat16, enabled=recipe.bfloat16):
            embeddings = F.embedding(batch.input_ids, self.embedding)
            made = list(training_passes(self.model, embeddings, batch.aux, batch.layout, passes))
            aligned = Alignment(batch.next_ids, batch.layout.positions, recipe.align) if recipe.align else None
            wanted, counted = batch.target_features, batch.counted
            losses = head_losses(self.head, made, wanted, counted, HeadWeights(), aligned, self.scored)
        weights = recipe.later_passes ** torch.arange(passes, device=self.head.device)
        counts = losses.masks.sum(dim=(1, 2))
        terms = {"token": (losses.token, counts), "counted": (counts, counted.sum().expand(passes))}
        return Sums(losses.loss * weights, counts, terms)

    def weight(self, batch: Batch) -> Tensor:
        return batch.counted.sum()


def train_eagle3(
    model: Eagle3Drafter,
    embedding: Tensor,
    head: Tensor,
    packs: PackedBatches,
    out_dir: Path,
    recipe: Eagle3Training,
    run: Run | None = None,
    logits: Logits = PLAIN,
) -> list[dict[str, Any]]:
    """Train ``model`` in place on ``packs``, whose rows have states of the target's layers, and write it to
    ``out_dir``, in float32.

    ``embedding`` and ``head`` ``[V, d]`` are the target's, and so is how ``logits`` are made. A training that was
    interrupted goes on where the state of ``run`` is. Returns the log, and writes it beside the checkpoint as
    ``training.json``.
    """
    settings = asdict(recipe)
    step = Eagle3Step(model, embedding, head, recipe, logits)
    batches = FeatureBatches(packs, ahead=made_ahead(packs.device, run))
    log = fit(step, batches, recipe.stages(), replace(run or Run(), settings=settings))
    if is_first_process():
        write_checkpoint(out_dir, model.shape, model.state_dict(), torch.float32)
        write_record(out_dir, {"recipe": settings, "log": log})
    return log
