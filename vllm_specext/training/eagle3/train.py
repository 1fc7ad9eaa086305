"""EAGLE-3's training, in stages: stage ``j`` makes ``j`` passes over each batch, or all make as many."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vllm_specext.training.batches import Batch
from vllm_specext.training.chained import ChainedStep, ChainedTraining, train_chained
from vllm_specext.training.eagle3.checkpoint import write_checkpoint
from vllm_specext.training.eagle3.model import Eagle3Drafter
from vllm_specext.training.eagle3.passes import training_passes
from vllm_specext.training.logits import PLAIN, Logits
from vllm_specext.training.own_head import OwnHead
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.run import Run
from vllm_specext.training.step import Progress


@dataclass(frozen=True)
class Eagle3Training(ChainedTraining):
    """How to train. The weight of later passes is that of the code that trained the released checkpoints."""

    passes: int | None = None
    """Over each batch, in every stage; in stage ``j`` it is ``j``, unless given (released: 7, in one stage)."""


class Eagle3Step(ChainedStep):
    model: Eagle3Drafter
    recipe: Eagle3Training

    def count(self, progress: Progress) -> int:
        return self.recipe.passes or super().count(progress)

    def passes(self, embeddings: Tensor, batch: Batch, count: int) -> Iterator[Tensor]:
        assert batch.aux is not None
        return training_passes(self.model, embeddings, batch.aux, batch.layout, count)

    def own_head(self) -> OwnHead | None:
        return self.model.own_head()


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

    def write(folder: Path) -> None:
        write_checkpoint(folder, model.shape, model.state_dict(), torch.float32)

    return train_chained(Eagle3Step(model, embedding, head, recipe, logits), packs, out_dir, run, write)
