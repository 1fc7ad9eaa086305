"""Train the bundled EAGLE-3 drafter for the bundled target.

Text, sizes of batches, steps, passes, optimizers and rates are those of the bundled GRIFFIN drafter, so that the two
can be compared. What differs belongs to EAGLE-3: cross-entropy against the target's distribution and no feature loss,
no noise on what is read, gradients from one pass's input into the pass before.

With ``--align K`` later passes learn as in GRIFFIN's token-alignable training (``Eagle3Recipe.align``). The file is
EAGLE-3's all the same.

    python -m vllm_specext.demo.train_eagle3 --work WORK --target vllm_specext/demo/models/target \\
        --out vllm_specext/demo/models/eagle3
"""

import os
from dataclasses import replace

import torch
from transformers import LlamaForCausalLM

from vllm_specext import served_drafter
from vllm_specext.demo.eagle3 import drafter_for
from vllm_specext.demo.training_text import LENGTH, PACKS, arguments, state_file, training_rows
from vllm_specext.training.eagle3.train import Eagle3Recipe, train_eagle3
from vllm_specext.training.features import TargetRows
from vllm_specext.training.packs import PackedBatches
from vllm_specext.training.run import Run

TOKENS = 16 // PACKS * LENGTH
"""Of each pack of a step."""
RECIPE = Eagle3Recipe(
    steps_per_stage=(400, 150, 420),
    learning_rates=(8e-3, 4.8e-3, 4.8e-3),
    warmup_steps=20,
    optimizer="muon",
    bfloat16=True,
)


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--align", type=int, default=0, help="best tokens in token-alignable training; 0: none")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = LlamaForCausalLM.from_pretrained(args.target).float().eval().requires_grad_(False)
    rows = training_rows(target, args.work, args.texts, args.continuations)
    model = drafter_for(target)
    source = TargetRows(target, rows, RECIPE.seed, layers=model.shape.layers, kept=False, bfloat16=True)
    train_eagle3(
        model,
        target.get_input_embeddings().weight,
        target.lm_head.weight,
        PackedBatches(source, TOKENS, PACKS),
        args.out,
        replace(RECIPE, align=args.align),
        torch.float16,
        Run(state_file(args.work, "eagle3", args.restart)),
    )
    served_drafter.write(args.out, "eagle3-tree", os.path.relpath(args.target, args.out))


if __name__ == "__main__":
    main()
