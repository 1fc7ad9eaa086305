"""What the training steps of block drafters share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.methods.block.model import DFlashDrafter
from vllm_specext.training.block.blocks import BlockBatch
from vllm_specext.training.block.ends import Ends
from vllm_specext.training.staged import StagedTraining


@dataclass(frozen=True)
class BlockTraining(StagedTraining):
    """How to train, in one stage."""

    steps_per_stage: tuple[int, ...] = (1000,)
    learning_rates: tuple[float, ...] = (6e-4,)
    anchors: int = 512
    """Blocks in a pack."""
    decay: float = 7.0
    """The loss of the ``j``-th token of a block weighs ``exp(-(j - 1) / decay)``. The paper of DFlash has 7 for blocks
    of 16."""

    def weights(self, drafted: int) -> Tensor:
        """Of the ``drafted`` tokens of a block."""
        return torch.exp(-torch.arange(drafted) / self.decay)


def draft_blocks(model: DFlashDrafter, ends: Ends, batch: BlockBatch) -> Tensor:
    """The head's inputs ``[B, A, W, d]`` of all rows of a batch's blocks."""
    text = model.keys_values(batch.states, batch.text_places)
    rows = ends.rows(batch.preceding[..., 0], batch.width)
    return model.draft(rows, batch.places, text, batch.attend).unflatten(1, (-1, batch.width))


def wanted_features(batch: BlockBatch, before: Tensor) -> Tensor:
    """The target's features ``[B, n, d]`` in the slots ``before`` ``[B, n]``."""
    return batch.features.gather(1, before[..., None].expand(-1, -1, batch.features.shape[-1]))
