"""Train the bundled EAGLE-3 drafter for the bundled target.

Text, sizes of batches, steps, passes, optimisers and rates are those of the bundled GRIFFIN drafter, so that the two
can be compared. What differs belongs to EAGLE-3: cross-entropy against the target's distribution and no feature loss,
no noise on what is read, gradients from one pass's input into the pass before.

    python -m vllm_specext.demo.train_eagle3 --work WORK --target vllm_specext/demo/models/target \\
        --out vllm_specext/demo/models/eagle3
"""

import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from tqdm import tqdm
from transformers import LlamaForCausalLM

from vllm_specext import served_drafter
from vllm_specext.demo.eagle3 import FILE, Eagle3Drafter, read_layers
from vllm_specext.demo.training_text import arguments, training_rows
from vllm_specext.training.features import endless_order, pad, present
from vllm_specext.training.losses import masked_mean, token_loss
from vllm_specext.training.optimization import linear_schedule, make_optimizers

STEPS = (400, 150, 420)
"""With one, two and three passes."""
RATES = (8e-3, 4.8e-3, 4.8e-3)
BATCH, WARMUP_STEPS, WEIGHT_DECAY, CLIP_VALUE, MUON_FACTOR = 16, 20, 0.01, 0.5, 5.0
LATER_PASSES = 0.8
"""A pass's loss weighs this much of the one before (as in the code that trained the released checkpoints)."""
LOG_EVERY = 50
RECORD = "training.json"


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


def batches(target: LlamaForCausalLM, rows: Sequence[Tensor], seed: int) -> Iterator[Batch]:
    order = endless_order(len(rows), torch.Generator().manual_seed(seed))
    while True:
        yield make_batch(target, [rows[next(order)] for _ in range(BATCH)])


def pass_losses(model: Eagle3Drafter, target: LlamaForCausalLM, batch: Batch, passes: int) -> Tensor:
    """``[passes]`` nats per token."""
    embeddings = target.get_input_embeddings()(batch.input_ids)
    made = model.passes(embeddings, batch.hidden_states, passes)
    return torch.stack([masked_mean(token_loss(target.lm_head(x), batch.probabilities), batch.counted) for x in made])


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--first-stage", type=int, default=1, help="continue the checkpoint in OUT with this stage")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    started = time.time()
    target = LlamaForCausalLM.from_pretrained(args.target).float().eval().requires_grad_(False)
    rows = training_rows(target, args.work, args.texts, args.continuations)
    model = Eagle3Drafter(target)
    log: list[dict[str, Any]] = []
    if args.first_stage > 1:
        model.load_state_dict({name: tensor.float() for name, tensor in load_file(args.out / FILE).items()})
        before = json.loads((args.out / RECORD).read_text())["log"]
        log += [row for row in before if row["stage"] < args.first_stage]
    for stage, (steps, rate) in enumerate(zip(STEPS, RATES, strict=True), start=1):
        if stage < args.first_stage:
            continue
        optimizers = make_optimizers(list(model.parameters()), "muon", rate, WEIGHT_DECAY, MUON_FACTOR)
        schedules = [linear_schedule(optimizer, WARMUP_STEPS, steps) for optimizer in optimizers]
        weights = LATER_PASSES ** torch.arange(stage)
        source = batches(target, rows, seed=stage)
        recent: list[Tensor] = []
        for step in tqdm(range(1, steps + 1), desc=f"stage {stage}", mininterval=5):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                losses = pass_losses(model, target, next(source), stage)
            (losses * weights).sum().backward()
            nn.utils.clip_grad_value_(model.parameters(), CLIP_VALUE)
            for optimizer, schedule in zip(optimizers, schedules, strict=True):
                optimizer.step()
                optimizer.zero_grad()
                schedule.step()
            recent.append(losses.detach())
            if step % LOG_EVERY == 0 or step == steps:
                means = [round(loss, 4) for loss in torch.stack(recent).mean(dim=0).tolist()]
                log.append({"stage": stage, "step": step, "token": means})
                print(json.dumps(log[-1]), f"{time.time() - started:.0f} s", flush=True)
                recent.clear()
        model.save(args.out)
        served_drafter.write(args.out, "eagle3-tree", os.path.relpath(args.target, args.out))
        (args.out / RECORD).write_text(json.dumps({"log": log}, indent=1) + "\n")


if __name__ == "__main__":
    main()
