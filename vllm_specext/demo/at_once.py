"""How drafters learn to draft all positions in one pass, by rows with mask tokens: P-EAGLE's and PARD's.

In every row of text drafts begin at random places; each position of a draft learns the target's distribution of its
token, given the text up to there. Later positions weigh less. The papers sample positions by depth instead (arXiv
2602.01469, 2504.18583); rows are short here, so that all fit.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from vllm_specext.demo.draft_batches import Batch, DraftBatches
from vllm_specext.training.loop import fit
from vllm_specext.training.optimization import linear, make_optimizers
from vllm_specext.training.run import Run
from vllm_specext.training.stages import Stage, Steps
from vllm_specext.training.step import Progress, Sums, TrainingStep

LEVELS = 8
"""Positions that are drafted at once, as many as released drafters have been trained for at least."""
MASKS = LEVELS - 1
BATCH, DRAFTS, RATE, WARMUP, DECAY = 8, 32, 4e-3, 20, 3.0
"""The loss of the ``j``-th position weighs ``exp(-(j - 1) / DECAY)``."""


def seen(last: Tensor, text: int) -> Tensor:
    """What rows see, ``[B, 1, rows, rows]``: first come ``text`` rows of text, of which each sees those before it, and
    then the mask tokens of each draft, which see the text up to row ``last`` ``[B, A]`` and those before them."""
    size, count = len(last), last.shape[1] * MASKS
    ends = torch.cat((torch.arange(text).expand(size, -1), last.repeat_interleave(MASKS, dim=1)), dim=1)
    of_text = torch.arange(text) <= ends[..., None]
    draft, row = torch.arange(count) // MASKS, torch.arange(count)
    of_draft = (draft[:, None] == draft) & (row <= row[:, None])
    of_draft = torch.cat((torch.zeros(text, count, dtype=torch.bool), of_draft))
    return torch.cat((of_text, of_draft.expand(size, -1, -1)), dim=2)[:, None]


def drafted(made: Tensor, last: Tensor, text: int) -> Tensor:
    """``[B, A, LEVELS, d]``: what is made of the last rows of text, and of the mask tokens after them."""
    first = made[:, :text].gather(1, last[..., None].expand(-1, -1, made.shape[-1]))
    return torch.cat((first[:, :, None], made[:, text:].view(*last.shape, MASKS, -1)), dim=2)


class Step(TrainingStep[Batch]):
    """``model`` is called with a batch and the target, and gives logits ``[B, A, LEVELS, V]``."""

    def __init__(self, model: nn.Module, target: LlamaForCausalLM) -> None:
        super().__init__()
        self.model: nn.Module = model
        self.target = target
        self.weights = torch.exp(-torch.arange(LEVELS) / DECAY)

    def forward(self, batch: Batch, progress: Progress) -> Sums:
        logits = self.model(batch, self.target)
        # A token's distribution comes from the state before it.
        before = (batch.anchors[..., None] + torch.arange(LEVELS)).flatten(1)
        states = batch.last_states.gather(1, before[..., None].expand(-1, -1, batch.last_states.shape[-1]))
        wanted = self.target.lm_head(states).softmax(dim=-1).view_as(logits)
        losses = (logits.logsumexp(dim=-1) - (wanted * logits).sum(dim=-1)).mean(dim=(0, 1))
        return Sums.of_means((losses * self.weights).sum(), {"token": losses})


def train(
    model: nn.Module, target: LlamaForCausalLM, layers: Sequence[int], rows: Sequence[Tensor], steps: int
) -> dict[str, Any]:
    """Train ``model`` in place, with the inputs of the target's ``layers``; what was done, and the losses."""
    optimizers = partial(make_optimizers, name="muon", rate=RATE, weight_decay=0.01, muon_factor=5.0)
    clip = partial(nn.utils.clip_grad_value_, clip_value=0.5)
    stages = [Stage(Steps(steps, 50), optimizers, linear(WARMUP, steps), clip)]
    recipe = {"steps": steps, "learning_rate": RATE, "batch": BATCH, "drafts": DRAFTS, "decay": DECAY}
    batches = DraftBatches(target, layers, rows, BATCH, DRAFTS, LEVELS)
    log = fit(Step(model, target), batches, stages, Run(settings=recipe))
    return {"recipe": recipe, "log": log}
