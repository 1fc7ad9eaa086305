"""Train the bundled GRIFFIN drafter for the bundled target, on one CPU core in about half an hour.

The text is the corpus and the target's own greedy continuations of corpus prefixes: those are what a greedy server will
verify drafts against. Prints the acceptance length (greedy chains of 4) on held-out text and on the
target's own continuations of held-out prefixes that do not loop.

    python -m vllm_specext.demo.train_griffin --work WORK --target vllm_specext/demo/models/target \\
        --out vllm_specext/demo/models/griffin
"""

import json
import os
import time
from dataclasses import asdict

import torch
from transformers import LlamaForCausalLM

from vllm_specext import served_drafter
from vllm_specext.demo.training_text import CHAIN, PROMPT, arguments, held_out_rows, training_rows
from vllm_specext.methods.griffin.checkpoint import read_tensors
from vllm_specext.training.acceptance import measure_acceptance
from vllm_specext.training.features import endless_batches
from vllm_specext.training.train_griffin import Recipe, new_drafter, train


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, nargs="+", default=[400, 150, 420], help="of each stage")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=8e-3, help="AdamW's in the first stage; Muon's is five times it")
    parser.add_argument("--first-stage", type=int, default=1, help="continue the checkpoint in OUT with this stage")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    started = time.time()
    target = LlamaForCausalLM.from_pretrained(args.target).float().eval().requires_grad_(False)
    rows = training_rows(target, args.work, args.texts, args.continuations)
    print(f"{time.time() - started:.0f} s until the first step", flush=True)
    recipe = Recipe(
        steps_per_stage=tuple(args.steps),
        learning_rates=(args.lr, *[0.6 * args.lr] * (len(args.steps) - 1)),
        warmup_steps=20,
        optimizer="muon",
        bfloat16=True,
    )
    model = new_drafter(target, mlp_size=704, heads=4, kv_heads=4, head_dim=64)
    batches = endless_batches(target, rows, args.batch, torch.Generator().manual_seed(args.first_stage), bfloat16=True)
    if args.first_stage > 1:
        model.load_state_dict({name: tensor.float() for name, tensor in read_tensors(args.out).items()})
    train(model, target.lm_head.weight, batches, args.out, recipe, torch.float16, args.first_stage)
    served_drafter.write(args.out, "griffin", os.path.relpath(args.target, args.out))
    figures = {
        name: {"rows": len(rows), **asdict(measure_acceptance(model, target, rows, PROMPT, CHAIN))}
        for name, rows in held_out_rows(target, args.work).items()
    }
    print(json.dumps(figures, indent=1), f"{time.time() - started:.0f} s", flush=True)
    (args.out / "acceptance.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
