"""DFlash's training (arXiv 2602.06036): in every pack blocks begin at random places of answers, and each mask token is
trained on the target's distribution of its token, given the text up to the block.

The paper learns the target's own tokens; their distributions say more. Later tokens of a block weigh less, as in the
paper. The embedding and the head are the target's and stay as they are. The same seeds give the same drafter.
"""

from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.methods.block.model import DFlashDrafter
from vllm_specext.training.batches import MadeBatches, made_ahead
from vllm_specext.training.chains import most_likely
from vllm_specext.training.dflash.attention import BlockAttention
from vllm_specext.training.dflash.blocks import BlockBatch, make_blocks
from vllm_specext.training.dflash.checkpoint import write_checkpoint
from vllm_specext.training.dflash.shape import DFlashShape
from vllm_specext.training.head_loss import HeadWeights, head_losses
from vllm_specext.training.logits import PLAIN, Logits, Scored
from vllm_specext.training.loop import fit
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.processes import is_first_process
from vllm_specext.training.run import Run, write_record
from vllm_specext.training.staged import StagedTraining
from vllm_specext.training.step import Progress, Sums, TrainingStep

TOGETHER = 4096
"""Rows of simulated blocks that live at the same time."""


@dataclass(frozen=True)
class DFlashTraining(StagedTraining):
    """How to train, in one stage."""

    steps_per_stage: tuple[int, ...] = (1000,)
    learning_rates: tuple[float, ...] = (6e-4,)
    anchors: int = 512
    """Blocks in a pack."""
    decay: float = 7.0
    """The loss of the ``j``-th token of a block weighs ``exp(-(j - 1) / decay)``. The paper has 7 for blocks of 16."""


@dataclass(frozen=True)
class Ends:
    """The target's, frozen, as a drafter reads them."""

    embedding: Tensor
    head: Tensor
    """Both ``[V, d]``."""
    mask: int
    """The token that stands for those that are not known yet."""
    scale: float = 1.0
    """What embeddings are multiplied by."""
    logits: Logits = PLAIN
    """How the target makes its own. A drafter's config.json names neither cap nor scale, so that a server makes its
    logits plainly."""

    def rows(self, first_ids: Tensor, width: int) -> Tensor:
        """Embeddings ``[B, A · width, d]`` of blocks that begin with tokens ``first_ids`` ``[B, A]``."""
        masks = first_ids.new_full((*first_ids.shape, width - 1), self.mask)
        return self.scale * F.embedding(torch.cat((first_ids[..., None], masks), dim=-1).flatten(1), self.embedding)


class DFlashStep(TrainingStep[BlockBatch]):
    """A pass over a batch's blocks. The losses to add up, and the term, are ``[W - 1]``: by place in the block."""

    def __init__(self, model: DFlashDrafter, ends: Ends, width: int, recipe: DFlashTraining) -> None:
        super().__init__()
        self.model: DFlashDrafter = model
        self.ends, self.recipe = ends, recipe
        self.weights = torch.exp(-torch.arange(width - 1) / recipe.decay).to(ends.head.device)

    def forward(self, batch: BlockBatch, progress: Progress) -> Sums:
        width, head = batch.width, self.ends.head
        with torch.autocast(head.device.type, dtype=torch.bfloat16, enabled=self.recipe.bfloat16):
            text = self.model.keys_values(batch.states, batch.text_places)
            rows = self.ends.rows(batch.first_ids, width)
            made = self.model.draft(rows, batch.places, text, batch.attend).unflatten(1, (-1, width))
            head = head.bfloat16() if self.recipe.bfloat16 else head  # once for all places
            losses = [self._loss(head, batch, made, place) for place in range(width - 1)]
        counts = batch.counted.sum(dim=(0, 1))
        summed = torch.cat(losses)
        return Sums(summed * self.weights, counts, {"token": (summed.detach(), counts)})

    def _loss(self, head: Tensor, batch: BlockBatch, made: Tensor, place: int) -> Tensor:
        """``[1]``: the sum over all blocks of the cross-entropy of their token at this ``place``."""
        before = batch.before[:, :, place, None].expand(-1, -1, batch.features.shape[-1])
        wanted, counted = batch.features.gather(1, before), batch.counted[:, :, place]
        scored = Scored(target=self.ends.logits)
        return head_losses(head, [made[:, :, place + 1]], wanted, counted, HeadWeights(), scored=scored).loss

    def weight(self, batch: BlockBatch) -> Tensor:
        return batch.counted.sum()


def train_dflash(
    model: DFlashDrafter,
    shape: DFlashShape,
    ends: Ends,
    packs: PackedBatches,
    out_dir: Path,
    recipe: DFlashTraining,
    run: Run | None = None,
) -> list[dict[str, Any]]:
    """Train ``model``, of this ``shape``, in place on ``packs``, whose rows have states of the target's layers, and
    write it to ``out_dir``, in float32.

    A training that was interrupted goes on where the state of ``run`` is. Returns the log, and writes it beside the
    checkpoint as ``training.json``.
    """
    settings = asdict(recipe) | {"block_size": shape.block}
    make = partial(make_blocks, count=recipe.anchors, width=shape.block, seed=recipe.seed)
    batches = MadeBatches(packs, make, ahead=made_ahead(packs.device, run))
    step = DFlashStep(model, ends, shape.block, recipe)
    log = fit(step, batches, recipe.stages(), replace(run or Run(), settings=settings))
    if is_first_process():
        write_checkpoint(out_dir, shape, model.state_dict(), torch.float32)
        write_record(out_dir, {"recipe": settings, "log": log})
    return log


def simulate_blocks(model: DFlashDrafter, ends: Ends, token_ids: Tensor, states: Tensor, length: int) -> Tensor:
    """The most likely token of each of ``length`` places after each of ``token_ids`` ``[B, L]``, drafted in blocks of
    just these: ``[B, L, length]``. ``states[:, s]`` ``[B, L, n d]`` are the target's of the position before
    ``token_ids[:, s]``."""
    count, width = token_ids.shape[1], length + 1
    text = model.keys_values(states, torch.arange(count, device=states.device)[None])
    drafts = []
    for start in range(0, count, max(1, TOGETHER // width)):
        part = token_ids[:, start : start + max(1, TOGETHER // width)]
        anchors = 1 + torch.arange(start, start + part.shape[1])[None].expand(len(part), -1)
        places = (anchors[:1, :, None] + torch.arange(width)).flatten(1).to(states.device)
        attend = BlockAttention.of(anchors, torch.zeros_like(anchors), width, states.device)
        made = model.draft(ends.rows(part, width), places, text, attend).unflatten(1, (-1, width))[:, :, 1:]
        drafts.append(most_likely(made.flatten(1, 2), ends.head).unflatten(1, (-1, length)))
    return torch.cat(drafts, dim=1)
