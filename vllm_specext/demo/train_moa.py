"""Train the bundled MoA drafter for the bundled target, on one CPU core in about half an hour.

Text and measurements are GRIFFIN's (``training_text.py``): acceptance length of greedy chains of 4 on held-out text and
on the target's own continuations of held-out prefixes that do not loop.

    python -m vllm_specext.demo.train_moa --work WORK --target vllm_specext/demo/models/target \\
        --out vllm_specext/demo/models/moa
"""

import json
import os
import time
from dataclasses import asdict

import torch
from transformers import LlamaForCausalLM

from vllm_specext import served_drafter
from vllm_specext.demo.training_text import CHAIN, PROMPT, arguments, held_out_rows, state_file, training_rows
from vllm_specext.training.moa.acceptance import measure_moa_acceptance
from vllm_specext.training.moa.target import TargetStateReader, last_target_layers
from vllm_specext.training.moa.train import MoARecipe, train_moa
from vllm_specext.training.moa.untrained import new_moa_drafter
from vllm_specext.training.run import Run


def main() -> None:
    parser = arguments(__doc__ or "")
    parser.add_argument("--target-layer-inference", type=int, default=0, help="last layers of the target to draft with")
    parser.add_argument("--without-lsa", action="store_true", help="the mean of the layers' keys and values instead")
    parser.add_argument(
        "--blocks",
        type=int,
        nargs=2,
        default=[3, 8],
        metavar=("FEWEST", "MOST"),
        help="drafting steps trained for; 1 1 makes no blocks",
    )
    parser.add_argument("--steps", type=int, default=1400)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--lr", type=float, default=8e-3, help="AdamW's; Muon's is five times it")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    started = time.time()
    target = LlamaForCausalLM.from_pretrained(args.target).float().eval().requires_grad_(False)
    rows = training_rows(target, args.work, args.texts, args.continuations)
    print(f"{time.time() - started:.0f} s until the first step", flush=True)
    # Where the CPU has no instructions for it, bfloat16 takes three times as long as float32.
    bfloat16 = torch.cpu._is_avx512_bf16_supported()
    recipe = MoARecipe(
        steps=args.steps,
        learning_rate=args.lr,
        final_learning_rate=0.0,
        warmup_steps=20,
        decay_steps=args.steps,
        optimizer="muon",
        drafted=tuple(args.blocks),
        lsa_chunk=None,
        compiled=True,
        bfloat16=bfloat16,
    )
    used = args.target_layer_inference
    model = new_moa_drafter(
        target,
        mlp_size=704,
        kv_heads=2,
        lsa_mlp_size=192,
        lsa_kv_heads=2,
        with_lsa=not args.without_lsa,
        target_layer_inference=used,
    )
    last_layers = last_target_layers(target, used) if used else None
    source = TargetStateReader(target, rows, args.batch, 1, used, bfloat16=bfloat16, compiled=True)
    state = state_file(args.work, "moa", args.restart)
    train_moa(model, target.lm_head.weight, last_layers, source, args.out, recipe, torch.float16, Run(state))
    served_drafter.write(args.out, "moa", os.path.relpath(args.target, args.out))
    figures = {
        name: {"rows": len(rows), **asdict(measure_moa_acceptance(model, target, rows, PROMPT, CHAIN))}
        for name, rows in held_out_rows(target, args.work).items()
    }
    print(json.dumps(figures, indent=1), f"{time.time() - started:.0f} s", flush=True)
    (args.out / "acceptance.json").write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
