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
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from vllm_specext import served_drafter
from vllm_specext.demo.dflash import BLOCK, MASK, drafter_for, save, target_layers
from vllm_specext.demo.training_text import arguments, state_file, training_rows
from vllm_specext.methods.block.model import DFlashDrafter, blocks
from vllm_specext.training.features import RandomOrder, pad
from vllm_specext.training.loop import fit
from vllm_specext.training.optimization import linear, make_optimizers
from vllm_specext.training.processes import is_first_process
from vllm_specext.training.run import Run, write_record
from vllm_specext.training.stages import Stage, Steps
from vllm_specext.training.step import Progress, Share, Sums, TrainingStep

STEPS, RATE = 970, 8e-3
BATCH, WARMUP_STEPS, WEIGHT_DECAY, CLIP_VALUE, MUON_FACTOR = 16, 20, 0.01, 0.5, 5.0
ANCHORS = 64
"""Blocks in a row of text."""
DECAY = 3.0
"""The loss of the ``j``-th drafted token weighs ``exp(-(j - 1) / DECAY)``; the paper has 4 for blocks of 8."""


class Batch(NamedTuple):
    """``d`` hidden size, ``V`` tokens, ``A`` blocks."""

    token_ids: Tensor
    """``[B, L]``"""
    states: Tensor
    """Hidden states of the target, side by side, ``[B, L, 3 d]``."""
    last_states: Tensor
    """The target's last ones, ``[B, L, d]``."""
    anchors: Tensor
    """Places of the blocks' first tokens, ``[B, A]``."""


class DFlashBatches:
    """Random rows with what the target makes of them, all rows once before any comes again. What it makes of a row is
    kept from its first time on, in bfloat16."""

    def __init__(self, target: LlamaForCausalLM, rows: Sequence[Tensor]) -> None:
        self.target, self.rows = target, [row for row in rows if len(row) > BLOCK]
        self.order = RandomOrder(len(self.rows), BATCH, seed=1)
        self.generator = torch.Generator().manual_seed(0)
        self.kept: dict[int, Tensor] = {}

    def next(self, progress: Progress, share: Share) -> Batch:
        everything = self.order.take()
        chosen = share.of(everything)
        rows = [self.rows[i] for i in chosen]
        kept = nn.utils.rnn.pad_sequence([self._states(i) for i in chosen], batch_first=True).float()
        states, last = kept.split([kept.shape[-1] - self.target.config.hidden_size, self.target.config.hidden_size], 2)
        # The last drafted token of a block is the one after the row at most. A text's first token is never drafted.
        room = (torch.tensor([len(row) for row in rows]) - (BLOCK - 1))[:, None]
        places = share.of(torch.rand(len(everything), ANCHORS, generator=self.generator))
        anchors = 1 + (places * room).long().clamp(max=room - 1)
        return Batch(pad(rows), states, last, anchors)

    @torch.no_grad()
    def _states(self, row: int) -> Tensor:
        """``[L, 3 d + d]``"""
        if row not in self.kept:
            output = self.target.model(self.rows[row][None], use_cache=False, output_hidden_states=True)
            read = [output.hidden_states[layer + 1] for layer in target_layers(self.target.config.num_hidden_layers)]
            self.kept[row] = torch.cat((*read, output.last_hidden_state), dim=-1)[0].bfloat16()
        return self.kept[row]

    def state_dict(self) -> dict[str, Any]:
        return {"order": self.order.state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.order.load_state_dict(state["order"])
        self.generator.set_state(state["generator"])


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
    recipe = {"steps": steps, "learning_rate": RATE, "batch": BATCH, "blocks": ANCHORS, "decay": DECAY}
    log = fit(DFlashStep(model, target), DFlashBatches(target, rows), stages(steps, log_every), Run(state, recipe))
    if is_first_process():
        save(model, target.config, out)
        write_record(out, {"recipe": recipe, "log": log})


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    target = LlamaForCausalLM.from_pretrained(args.target).float().eval().requires_grad_(False)
    rows = training_rows(target, args.work, args.texts, args.continuations)
    drafter = drafter_for(target.config)
    train(drafter, target, rows, args.out, state_file(args.work, "dflash", args.restart), args.steps)
    served_drafter.write(args.out, "dflash-tree", os.path.relpath(args.target, args.out))


if __name__ == "__main__":
    main()
