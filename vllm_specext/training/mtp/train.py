"""Further training of a target's multi-token prediction module (FastMTP, arXiv 2509.18362).

Modules are trained to predict one token. Here a module makes several passes over each batch, of which the later ones
read its own features, as in a chain that it drafts; later passes weigh less.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_specext.training.batches import Batch
from vllm_specext.training.chained import ChainedStep, ChainedTraining, train_chained
from vllm_specext.training.logits import PLAIN, Logits
from vllm_specext.training.mtp.checkpoint import write_checkpoint
from vllm_specext.training.mtp.model import MtpModule
from vllm_specext.training.mtp.passes import training_passes
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.run import Run
from vllm_specext.training.step import Progress


@dataclass(frozen=True)
class MtpTraining(ChainedTraining):
    """How to train, in one stage."""

    steps_per_stage: tuple[int, ...] = (1000,)
    learning_rates: tuple[float, ...] = (1e-4,)
    later_passes: float = 0.6
    """The paper's."""
    passes: int = 3
    """Over each batch: the paper's."""


class MtpStep(ChainedStep):
    model: MtpModule
    recipe: MtpTraining

    def count(self, progress: Progress) -> int:
        return self.recipe.passes

    def passes(self, embeddings: Tensor, batch: Batch, count: int) -> Iterator[Tensor]:
        return training_passes(self.model, embeddings, batch.features, batch.layout, count)


def train_mtp(
    model: MtpModule,
    embedding: Tensor,
    head: Tensor,
    packs: PackedBatches,
    out_dir: Path,
    recipe: MtpTraining,
    run: Run | None = None,
    logits: Logits = PLAIN,
) -> list[dict[str, Any]]:
    """Train ``model`` in place on ``packs``, and write it to ``out_dir``, in float32.

    ``embedding`` and ``head`` ``[V, d]`` are the target's, and so is how ``logits`` are made. A training that was
    interrupted goes on where the state of ``run`` is. Returns the log, and writes it beside the checkpoint as
    ``training.json``.
    """

    def write(folder: Path) -> None:
        write_checkpoint(folder, model.shape, model.state_dict(), torch.float32)

    return train_chained(MtpStep(model, embedding, head, recipe, logits), packs, out_dir, run, write)
