"""DSpark's training (arXiv 2607.05147): DFlash's, of blocks whose rows give the token after their own, with a Markov
head, which knows the token before, and a confidence head, which learns how likely a token is accepted.

The loss is mostly the distance of the drafter's distribution from the target's, of which follows how many drawn tokens
are accepted. Later tokens of a block weigh less. Parts and weights are DeepSpec's, DeepSeek's own training, but for two
things: the cross-entropy is against the target's distribution in the place of the text's token, and what the confidence
head learns does not reach the drafter. The embedding and the head are the target's and stay as they are.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.methods.block.markov import DSparkDrafter
from vllm_specext.training.block.blocks import BlockBatch
from vllm_specext.training.block.dspark_loss import Drafted, LossWeights, dspark_losses
from vllm_specext.training.block.ends import Ends
from vllm_specext.training.block.step import BlockTraining, draft_blocks, wanted_features
from vllm_specext.training.step import Progress, Sums, TrainingStep


@dataclass(frozen=True)
class DSparkTraining(BlockTraining):
    """How to train. The decay and the weights are DeepSpec's."""

    decay: float = 4.0
    """For blocks of 7."""
    token_weight: float = 0.1
    distance_weight: float = 0.9
    confidence_weight: float = 1.0
    """Of the confidence head's cross-entropy."""


class DSparkStep(TrainingStep[BlockBatch]):
    """A pass over a batch's blocks. The loss is one number; the terms are ``[D]``: by place in the block."""

    def __init__(self, model: DSparkDrafter, ends: Ends, drafted: int, recipe: DSparkTraining) -> None:
        super().__init__()
        self.model: DSparkDrafter = model
        self.ends, self.recipe = ends, recipe
        self.parts = LossWeights(recipe.token_weight, recipe.distance_weight)
        self.weights = recipe.weights(drafted).to(ends.head.device)

    def forward(self, batch: BlockBatch, progress: Progress) -> Sums:
        head, model = self.ends.head, self.model
        weights = batch.counted * self.weights
        with torch.autocast(head.device.type, dtype=torch.bfloat16, enabled=self.recipe.bfloat16):
            made = draft_blocks(model, self.ends, batch)
            before = model.markov_head.markov_w1(batch.preceding)
            drafted = Drafted(made.flatten(0, 2), before.flatten(0, 2), model.markov_head.markov_w2.weight)
            wanted = wanted_features(batch, batch.before.flatten(1)).flatten(0, 1)
            losses = dspark_losses(head, drafted, wanted, weights.flatten(), self.parts, self.ends.logits)
            accepted = losses.accepted.view_as(weights)
            loss, terms = losses.loss, {"token": losses.token.view_as(weights), "accepted": accepted}
            if model.confidence_head is not None:
                # DeepSpec's trains the drafter too. The bundled target accepted no more of such drafters.
                sure = model.confidence_head(made.detach(), before.detach())
                terms["confidence"] = _confidence_losses(sure, accepted)
                loss = loss + self.recipe.confidence_weight * (weights * terms["confidence"]).sum()
        counts = batch.counted.sum(dim=(0, 1))
        sums = {name: ((batch.counted * term.detach()).sum(dim=(0, 1)), counts) for name, term in terms.items()}
        return Sums(loss, weights.sum(), sums)

    def weight(self, batch: BlockBatch) -> Tensor:
        return (batch.counted * self.weights).sum()


def _confidence_losses(logits: Tensor, accepted: Tensor) -> Tensor:
    """Cross-entropies ``[B, A, D]`` of what the confidence head says, against the share that is ``accepted``."""
    return F.binary_cross_entropy_with_logits(logits.float(), accepted, reduction="none")
