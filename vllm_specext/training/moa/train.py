"""MoA's training: one pass over each batch, with the text in blocks of random length (``blocks.py``).

Embedding, head and the last layers of target-layer inference are the target's and stay as they are; its keys and values
are taken as the batches come. The same seeds give the same drafter.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vllm_specext.methods.moa.checkpoint import write_checkpoint
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.methods.moa.target_layers import TargetLayers
from vllm_specext.training.logits import PLAIN, Logits
from vllm_specext.training.loop import fit
from vllm_specext.training.moa.blocks import last_verified, sample_boundaries
from vllm_specext.training.moa.losses import MoALosses, moa_losses
from vllm_specext.training.moa.passes import drafted_features, through_target_layers
from vllm_specext.training.moa.target import TargetStateReader, TargetStates
from vllm_specext.training.optimization import OptimizerName, linear, make_optimizers
from vllm_specext.training.processes import is_first_process
from vllm_specext.training.run import Run, write_record
from vllm_specext.training.stages import Stage, Steps
from vllm_specext.training.step import Progress, Share, Sums, TrainingStep


@dataclass(frozen=True)
class MoATraining:
    """How to train. The defaults are the paper's, with batches of 32 sequences and 6 500 of them in an epoch."""

    steps: int = 195_000
    learning_rate: float = 6e-4
    final_learning_rate: float = 3e-5
    warmup_steps: int = 50
    """Steps of warm-up, at most the whole training."""
    decay_steps: int = 6_500
    """The step at which the learning rate, falling on a straight line, reaches the final one, at which it stays."""
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    optimizer: OptimizerName = "adamw"
    """Published: AdamW. Muon learns far more in few steps."""
    muon_factor: float = 5.0
    """Muon's learning rate as a multiple of AdamW's."""
    drafted: tuple[int, int] = (5, 13)
    """Fewest and most positions of a block after its boundary: drafting steps that are trained for."""
    staircase: float = 0.5
    """The share of the training over which the probability that SA sees only its own block falls from one to zero."""
    count_boundaries: bool = True
    """Whether the losses count boundaries, which see keys and values that drafting would not have. Published: yes."""
    lsa_chunk: int | None = 512
    """LSA sees so many tokens at a time, and is made again in the backward pass, which saves most of the memory; all at
    once, and kept, where there is no number."""
    bfloat16: bool = True
    log_every: int = 50
    """Steps from one log entry, and state to go on from, to the next."""
    seed: int = 0


@dataclass(frozen=True)
class MoABatch:
    """Rows, their boundaries ``[B, T]``, and the rows ``[B]`` in which SA sees only its own block."""

    rows: TargetStates
    boundaries: Tensor
    block_only: Tensor


@dataclass
class RowsInBlocks:
    """MoA's batches: rows as the target sees them, in random blocks."""

    rows: TargetStateReader
    recipe: MoATraining
    generator: torch.Generator

    def next(self, progress: Progress, share: Share) -> MoABatch:
        rows = self.rows.take(share)
        boundaries = sample_boundaries(rows.response, self.recipe.drafted, self.generator, share)
        alone = share.of(torch.rand(len(boundaries) * share.processes, generator=self.generator)).to(boundaries.device)
        return MoABatch(rows, boundaries, alone < staircase(progress.step, self.recipe))

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows.state_dict(), "blocks": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.rows.load_state_dict(state["rows"])
        self.generator.set_state(state["blocks"])


class MoAStep(TrainingStep[MoABatch]):
    """One pass over a batch; the terms are token, feature and, with target-layer inference, entry loss."""

    def __init__(
        self,
        model: MoADrafter,
        head: Tensor,
        last_layers: TargetLayers | None,
        recipe: MoATraining,
        logits: Logits = PLAIN,
    ) -> None:
        super().__init__()
        model.lsa_chunk = recipe.lsa_chunk
        self.model: MoADrafter = model
        self.head, self.last_layers = head, last_layers
        self.recipe, self.logits = recipe, logits

    def forward(self, batch: MoABatch, progress: Progress) -> Sums:
        with torch.autocast(self.head.device.type, dtype=torch.bfloat16, enabled=self.recipe.bfloat16):
            return self.losses(batch).sums()

    def weight(self, batch: MoABatch) -> Tensor:
        return self._counted(batch).sum()

    def losses(self, batch: MoABatch) -> MoALosses:
        rows, last, counted = batch.rows, last_verified(batch.boundaries), self._counted(batch)
        features = drafted_features(self.model, rows.embeddings, rows.kv, last, batch.block_only)
        if self.last_layers is None:
            return moa_losses(features, rows.features, self.head, counted, logits=self.logits)
        final = through_target_layers(self.last_layers, features, rows.last_kvs, last)
        return moa_losses(final, rows.features, self.head, counted, (features, rows.entry), self.logits)

    def _counted(self, batch: MoABatch) -> Tensor:
        return batch.rows.response & (self.recipe.count_boundaries | ~batch.boundaries)


def train_moa(
    model: MoADrafter,
    head: Tensor,
    last_layers: TargetLayers | None,
    rows: TargetStateReader,
    out_dir: Path,
    recipe: MoATraining,
    run: Run | None = None,
    logits: Logits = PLAIN,
) -> list[dict[str, Any]]:
    """Train ``model`` in place on ``rows`` and write it to ``out_dir``, in float32.

    ``head`` ``[V, E]`` is the target's output matrix, of which it makes ``logits``. A training that was interrupted
    goes on where the state of ``run`` is. Returns the log, and writes it beside the checkpoint as ``training.json``:
    step, and the losses averaged over the steps since the entry before.
    """
    batches = RowsInBlocks(rows, recipe, torch.Generator().manual_seed(recipe.seed))
    step = MoAStep(model, head, last_layers, recipe, logits)
    settings = asdict(recipe)
    log = fit(step, batches, [only_stage(recipe)], replace(run or Run(), settings=settings))
    if is_first_process():
        write_checkpoint(out_dir, model.shape, model.state_dict(), torch.float32)
        write_record(out_dir, {"recipe": settings, "log": log})
    return log


def only_stage(recipe: MoATraining) -> Stage:
    floor = recipe.final_learning_rate / recipe.learning_rate
    return Stage(
        Steps(recipe.steps, recipe.log_every),
        partial(
            make_optimizers,
            name=recipe.optimizer,
            rate=recipe.learning_rate,
            weight_decay=recipe.weight_decay,
            muon_factor=recipe.muon_factor,
        ),
        linear(min(recipe.warmup_steps, recipe.steps), recipe.decay_steps, floor),
        partial(nn.utils.clip_grad_norm_, max_norm=recipe.clip_norm),
    )


def staircase(step: int, recipe: MoATraining) -> float:
    """The probability, in this step, that SA sees only its own block."""
    return max(0.0, 1 - step / (recipe.staircase * recipe.steps)) if recipe.staircase else 0.0
