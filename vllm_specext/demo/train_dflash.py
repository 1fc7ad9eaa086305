"""Train the bundled DFlash drafter for the bundled target.

Text, sizes of batches, number of steps, optimizers and first rate are those of the bundled EAGLE-3 drafter, so that the
two can be compared. In every row of text blocks begin at random places; each mask token is trained on the target's
distribution of its token, given the text up to there. Later tokens weigh less, as in DFlash's paper.

    python -m vllm_specext.demo.train_dflash --work WORK --target vllm_specext/demo/models/target \\
        --out vllm_specext/demo/models/dflash
"""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from vllm_specext import served_drafter
from vllm_specext.demo.dflash import BLOCK, MASK, shape_for
from vllm_specext.demo.draft_batches import Batch, DraftBatches
from vllm_specext.demo.training_text import arguments, state_file, training_rows
from vllm_specext.methods.block.model import DFlashDrafter, blocks
from vllm_specext.training.block.checkpoint import write_checkpoint
from vllm_specext.training.loop import fit
from vllm_specext.training.optimization import linear, make_optimizers
from vllm_specext.training.processes import is_first_process
from vllm_specext.training.run import Run, write_record
from vllm_specext.training.stages import Stage, Steps
from vllm_specext.training.step import Progress, Sums, TrainingStep

STEPS, RATE = 970, 8e-3
BATCH, WARMUP_STEPS, WEIGHT_DECAY, CLIP_VALUE, MUON_FACTOR = 16, 20, 0.01, 0.5, 5.0
ANCHORS = 64
"""Blocks in a row of text."""
DECAY = 3.0
"""The loss of the ``j``-th drafted token weighs ``exp(-(j - 1) / DECAY)``; the paper has 4 for blocks of 8."""


class DFlashStep(TrainingStep[Batch]):
    def __init__(self, model: DFlashDrafter, target: LlamaForCausalLM) -> None:
        super().__init__()
        self.model: DFlashDrafter = model
        self.target = target
        self.weights = torch.exp(-torch.arange(BLOCK - 1) / DECAY)

    def forward(self, batch: Batch, progress: Progress) -> Sums:
        losses = block_losses(self.model, self.target, batch)
        return Sums.of_means((losses * self.weights).sum(), {"token": losses})


def block_losses(model: DFlashDrafter, target: LlamaForCausalLM, batch: Batch) -> Tensor:
    """``[BLOCK - 1]`` nats per token, by place in the block: cross-entropy against the target's distributions."""
    size, anchors = batch.anchors.shape
    places, mask = blocks(batch.anchors, BLOCK, batch.token_ids.shape[1])
    ids = torch.full((size, anchors, BLOCK), MASK)
    ids[:, :, 0] = batch.token_ids.gather(1, batch.anchors)
    made = model(target.get_input_embeddings()(ids.flatten(1)), places, batch.states, mask)
    logits = target.lm_head(made.view(size, anchors, BLOCK, -1)[:, :, 1:])
    # A token's distribution comes from the state before it.
    before = places.view(size, anchors, BLOCK)[:, :, :-1].flatten(1)
    states = batch.last_states.gather(1, before[..., None].expand(-1, -1, batch.last_states.shape[-1]))
    wanted = target.lm_head(states).softmax(dim=-1).view_as(logits)
    return (logits.logsumexp(dim=-1) - (wanted * logits).sum(dim=-1)).mean(dim=(0, 1))


def stages(steps: int, log_every: int) -> list[Stage]:
    optimizers = partial(make_optimizers, name="muon", rate=RATE, weight_decay=WEIGHT_DECAY, muon_factor=MUON_FACTOR)
    clip = partial(nn.utils.clip_grad_value_, clip_value=CLIP_VALUE)
    return [Stage(Steps(steps, log_every), optimizers, linear(WARMUP_STEPS, steps), clip)]


def train(
    model: DFlashDrafter,
    target: LlamaForCausalLM,
    rows: Sequence[Tensor],
    out: Path,
    state: Path | None = None,
    steps: int = STEPS,
    log_every: int = 50,
) -> None:
    """Train ``model`` in place on ``rows`` and write it to ``out``."""
    shape = shape_for(target.config)
    batches = DraftBatches(target, shape.reads, rows, BATCH, ANCHORS, BLOCK - 1)
    recipe = {"steps": steps, "learning_rate": RATE, "batch": BATCH, "blocks": ANCHORS, "decay": DECAY}
    log = fit(DFlashStep(model, target), batches, stages(steps, log_every), Run(state, recipe))
    if is_first_process():
        write_checkpoint(out, shape, model.state_dict(), torch.float16)
        write_record(out, {"recipe": recipe, "log": log})


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    target = LlamaForCausalLM.from_pretrained(args.target).float().eval().requires_grad_(False)
    rows = training_rows(target, args.work, args.texts, args.continuations)
    drafter = DFlashDrafter(shape_for(target.config).sizes())
    train(drafter, target, rows, args.out, state_file(args.work, "dflash", args.restart), args.steps)
    served_drafter.write(args.out, "dflash-tree", os.path.relpath(args.target, args.out))


if __name__ == "__main__":
    main()
