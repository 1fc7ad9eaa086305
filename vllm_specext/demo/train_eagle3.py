"""Train the bundled EAGLE-3 drafter for the bundled target.

Text, sizes of batches, steps, passes, optimizers and rates are those of the bundled GRIFFIN drafter, so that the two
can be compared. What differs belongs to EAGLE-3: cross-entropy against the target's distribution and no feature loss,
no noise on what is read, gradients from one pass's input into the pass before.

    python -m vllm_specext.demo.train_eagle3 --work WORK --target vllm_specext/demo/models/target \\
        --out vllm_specext/demo/models/eagle3
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
from vllm_specext.demo.eagle3 import Eagle3Drafter, read_layers
from vllm_specext.demo.training_text import arguments, state_file, training_rows
from vllm_specext.training.features import RandomOrder, pad, present
from vllm_specext.training.loop import fit, write_record
from vllm_specext.training.losses import masked_mean, token_loss
from vllm_specext.training.optimization import linear, make_optimizers
from vllm_specext.training.stages import Stage, Steps
from vllm_specext.training.step import Progress, TrainingStep

STEPS = (400, 150, 420)
"""Steps with one, two and three passes."""
RATES = (8e-3, 4.8e-3, 4.8e-3)
BATCH, WARMUP_STEPS, WEIGHT_DECAY, CLIP_VALUE, MUON_FACTOR = 16, 20, 0.01, 0.5, 5.0
LATER_PASSES = 0.8
"""A pass's loss weighs this much of the one before (as in the code that trained the released checkpoints)."""


class Batch(NamedTuple):
    """Inputs ``s`` and what the target makes of token ``s + 1``; ``d`` hidden size, ``V`` tokens."""

    input_ids: Tensor
    """``[B, L]``: tokens ``s + 1``."""
    hidden_states: Tensor
    """``[B, L, 3 d]`` of tokens ``s``."""
    probabilities: Tensor
    """``[B, L, V]`` of tokens ``s + 2``."""
    counted: Tensor
    """``[B, L]``: false where the row is padded."""


@torch.no_grad()
def make_batch(target: LlamaForCausalLM, rows: Sequence[Tensor]) -> Batch:
    token_ids, lengths = pad(rows), torch.tensor([len(row) for row in rows])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = target.model(token_ids, use_cache=False, output_hidden_states=True)
        logits = target.lm_head(output.last_hidden_state[:, 1:])
    read = [output.hidden_states[layer] for layer in read_layers(target.config.num_hidden_layers)]
    return Batch(
        token_ids[:, 1:],
        torch.cat(read, dim=-1)[:, :-1].float(),
        logits.float().softmax(dim=-1),
        present(token_ids, lengths)[:, 1:],
    )


class Eagle3Batches:
    """Random rows with what the target makes of them; in every stage all rows once before any comes again."""

    def __init__(self, target: LlamaForCausalLM, rows: Sequence[Tensor]) -> None:
        self.target, self.rows = target, rows
        self.stage, self.order = 0, RandomOrder(len(rows), BATCH, seed=0)

    def next(self, progress: Progress) -> Batch:
        if progress.stage != self.stage:
            self._begin(progress.stage)
        return make_batch(self.target, [self.rows[i] for i in self.order.take()])

    def _begin(self, stage: int) -> None:
        self.stage, self.order = stage, RandomOrder(len(self.rows), BATCH, seed=stage)

    def state_dict(self) -> dict[str, Any]:
        return {"stage": self.stage, "order": self.order.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._begin(state["stage"])
        self.order.load_state_dict(state["order"])


class Eagle3Step(TrainingStep[Batch]):
    """``progress.stage`` passes over a batch; the term is every pass's loss."""

    def __init__(self, model: Eagle3Drafter, target: LlamaForCausalLM) -> None:
        super().__init__()
        self.model: Eagle3Drafter = model
        self.target = target

    def forward(self, batch: Batch, progress: Progress) -> tuple[Tensor, dict[str, Tensor]]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            losses = pass_losses(self.model, self.target, batch, progress.stage)
        weights = LATER_PASSES ** torch.arange(progress.stage)
        return (losses * weights).sum(), {"token": losses.detach()}


def pass_losses(model: Eagle3Drafter, target: LlamaForCausalLM, batch: Batch, passes: int) -> Tensor:
    """``[passes]`` nats per token."""
    embeddings = target.get_input_embeddings()(batch.input_ids)
    made = model.passes(embeddings, batch.hidden_states, passes)
    return torch.stack([masked_mean(token_loss(target.lm_head(x), batch.probabilities), batch.counted) for x in made])


def stages(log_every: int) -> list[Stage]:
    return [
        Stage(
            Steps(steps, log_every),
            partial(make_optimizers, name="muon", rate=rate, weight_decay=WEIGHT_DECAY, muon_factor=MUON_FACTOR),
            linear(WARMUP_STEPS, steps),
            partial(nn.utils.clip_grad_value_, clip_value=CLIP_VALUE),
        )
        for steps, rate in zip(STEPS, RATES, strict=True)
    ]


def train(
    model: Eagle3Drafter,
    target: LlamaForCausalLM,
    rows: Sequence[Tensor],
    out: Path,
    state: Path | None = None,
    log_every: int = 50,
) -> None:
    """Train ``model`` in place on ``rows`` and write it to ``out``."""
    recipe = {"steps_per_stage": STEPS, "learning_rates": RATES, "batch": BATCH}
    log = fit(Eagle3Step(model, target), Eagle3Batches(target, rows), stages(log_every), state, recipe)
    model.save(out)
    write_record(out, {"recipe": recipe, "log": log})


def main() -> None:
    args = arguments(__doc__ or "").parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    target = LlamaForCausalLM.from_pretrained(args.target).float().eval().requires_grad_(False)
    rows = training_rows(target, args.work, args.texts, args.continuations)
    train(Eagle3Drafter(target), target, rows, args.out, state_file(args.work, "eagle3", args.restart))
    served_drafter.write(args.out, "eagle3-tree", os.path.relpath(args.target, args.out))


if __name__ == "__main__":
    main()
