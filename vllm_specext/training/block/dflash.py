"""DFlash's training (arXiv 2602.06036): in every pack blocks begin at random places of answers, and each mask token is
trained on the target's distribution of its token, given the text up to the block.

The paper learns the target's own tokens; their distributions say more. Later tokens of a block weigh less, as in the
paper. The embedding and the head are the target's and stay as they are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.methods.block.model import DFlashDrafter
from vllm_specext.training.block.blocks import BlockBatch
from vllm_specext.training.block.ends import Ends
from vllm_specext.training.block.step import BlockTraining, draft_blocks, wanted_features
from vllm_specext.training.head_loss import HeadWeights, head_losses
from vllm_specext.training.logits import Scored
from vllm_specext.training.step import Progress, Sums, TrainingStep


@dataclass(frozen=True)
class DFlashTraining(BlockTraining):
    """How to train."""


class DFlashStep(TrainingStep[BlockBatch]):
    """A pass over a batch's blocks. The losses to add up, and the term, are ``[D]``: by place in the block."""

    def __init__(self, model: DFlashDrafter, ends: Ends, drafted: int, recipe: DFlashTraining) -> None:
        super().__init__()
        self.model: DFlashDrafter = model
        self.ends, self.recipe = ends, recipe
        self.weights = recipe.weights(drafted).to(ends.head.device)

    def forward(self, batch: BlockBatch, progress: Progress) -> Sums:
        head = self.ends.head
        with torch.autocast(head.device.type, dtype=torch.bfloat16, enabled=self.recipe.bfloat16):
            made = draft_blocks(self.model, self.ends, batch)
            head = head.bfloat16() if self.recipe.bfloat16 else head  # once for all places
            losses = [self._loss(head, batch, made, place) for place in range(batch.before.shape[-1])]
        counts = batch.counted.sum(dim=(0, 1))
        summed = torch.cat(losses)
        return Sums(summed * self.weights, counts, {"token": (summed.detach(), counts)})

    def _loss(self, head: Tensor, batch: BlockBatch, made: Tensor, place: int) -> Tensor:
        """``[1]``: the sum over all blocks of the cross-entropy of their token at this ``place``."""
        wanted, counted = wanted_features(batch, batch.before[:, :, place]), batch.counted[:, :, place]
        scored = Scored(target=self.ends.logits)
        return head_losses(head, [made[:, :, place + 1]], wanted, counted, HeadWeights(), scored=scored).loss

    def weight(self, batch: BlockBatch) -> Tensor:
        return batch.counted.sum()
