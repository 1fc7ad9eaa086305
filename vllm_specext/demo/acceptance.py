"""Tokens per verification of a drafter for the bundled target, on held-out text of each kind.

    python -m vllm_specext.demo.acceptance griffin --work WORK --drafter FOLDER [--least-code N] [--least-prose N]

Greedy chains of 4, simulated, on held-out text and on the target's own continuations of its beginnings that do not
loop. Ends with status 1 where the continuations give fewer than asked for.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from vllm_specext.demo.training_text import CHAIN, PROMPT, held_out_rows
from vllm_specext.measure.bundled import TARGET
from vllm_specext.training.acceptance import accepted_tokens, summarise
from vllm_specext.training.features import TargetRows
from vllm_specext.training.pipeline.method import Drafter, TrainedMethod
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.target import read_target

BY_RECIPE = ("griffin", "eagle3", "moa")
"""The methods whose bundled drafters are made by recipes. The DFlash drafter is not: it reads fewer of the target's
layers than a training gives it, and drafts fewer tokens (``train_dflash.py``)."""


def measured(method: TrainedMethod, drafter: Path, work: Path) -> dict[str, Any]:
    """By text: rows, tokens per verification, rates at each depth, and verifications. ``work`` has the encoded
    corpus."""
    described = read_target(str(TARGET), weights=True)
    loaded = method.load(drafter, described, torch.device("cpu"))
    target = LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)
    found = {}
    for name, texts in held_out_rows(target, work).items():
        rows = TargetRows(target, list(texts), seed=0, layers=method.layers(described) or (), kept=False)
        accepted = torch.stack([accepted_in(method, loaded, rows, number) for number in range(len(texts))])
        found[name] = {"rows": len(texts), **asdict(summarise(accepted, PROMPT, CHAIN))}
    return found


@torch.no_grad()
def accepted_in(method: TrainedMethod, drafter: Drafter, rows: TargetRows, number: int) -> Tensor:
    """``[T - 1 - CHAIN]``: accepted tokens of the chains in row ``number``, as ``accepted_tokens`` counts them."""
    (row,) = rows.read([number])
    ids = row.token_ids[None]
    drafts = drafter.draft(ids[:, 1:], method.states(row)[None, :-1].float(), CHAIN)
    return accepted_tokens(drafts.cpu(), ids)[0]


def too_few(figures: dict[str, Any], least: dict[str, float]) -> list[str]:
    """A sentence for each text on which fewer tokens than ``least`` are accepted."""
    return [
        f"{name}: {figures[name]['tokens_per_verification']:.2f} tokens per verification; expected {fewest} or more."
        for name, fewest in least.items()
        if figures[name]["tokens_per_verification"] < fewest
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=BY_RECIPE)
    parser.add_argument("--work", type=Path, required=True, help="folder of the encoded corpus")
    parser.add_argument("--drafter", type=Path, required=True)
    parser.add_argument("--least-code", type=float, default=1.0, help="tokens per verification")
    parser.add_argument("--least-prose", type=float, default=1.0)
    args = parser.parse_args()
    figures = measured(TRAINABLE[args.method], args.drafter, args.work)
    print(json.dumps(figures, indent=1))
    least = {"code greedy": args.least_code, "prose greedy": args.least_prose}
    sys.exit("\n".join(too_few(figures, least)) or None)


if __name__ == "__main__":
    main()
