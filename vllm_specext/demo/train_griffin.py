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

import torch
from transformers import LlamaForCausalLM

from vllm_specext import served_drafter
from vllm_specext.demo.griffin_acceptance import measured
from vllm_specext.demo.training_text import LENGTH, PACKS, arguments, state_file, training_rows
from vllm_specext.training.features import TargetRows
from vllm_specext.training.griffin.train import GriffinRecipe, new_griffin_drafter, train_griffin
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.run import Run


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--steps", type=int, nargs="+", default=[400, 150, 420], help="of each stage")
    parser.add_argument("--batch", type=int, default=16, help="rows of the greatest length; a multiple of 4")
    parser.add_argument("--lr", type=float, default=8e-3, help="AdamW's in the first stage; Muon's is five times it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    started = time.time()
    target = LlamaForCausalLM.from_pretrained(args.target).float().eval().requires_grad_(False)
    rows = training_rows(target, args.work, args.texts, args.continuations)
    print(f"{time.time() - started:.0f} s until the first step", flush=True)
    recipe = GriffinRecipe(
        steps_per_stage=tuple(args.steps),
        learning_rates=(args.lr, *[0.6 * args.lr] * (len(args.steps) - 1)),
        warmup_steps=20,
        optimizer="muon",
        bfloat16=True,
    )
    model = new_griffin_drafter(target, mlp_size=704, heads=4, kv_heads=4, head_dim=64)
    packs = PackedBatches(TargetRows(target, rows, seed=1, bfloat16=True), args.batch // PACKS * LENGTH, PACKS)
    state = state_file(args.work, "griffin", args.restart)
    train_griffin(model, target.lm_head.weight, packs, args.out, recipe, torch.float16, Run(state))
    served_drafter.write(args.out, "griffin", os.path.relpath(args.target, args.out))
    figures = measured(model, target, args.work)
    print(json.dumps(figures, indent=1), f"{time.time() - started:.0f} s", flush=True)
    (args.out / "acceptance.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
