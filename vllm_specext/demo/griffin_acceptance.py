"""Tokens per verification of a GRIFFIN drafter for the bundled target, on held-out text of each kind.

    python -m vllm_specext.demo.griffin_acceptance --work WORK --drafter FOLDER

Greedy chains of 4, simulated, on held-out text and on the target's own continuations of its beginnings that do not
loop. Ends with status 1 where the continuations give fewer than a drafter of this size is expected to.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers import LlamaForCausalLM

from vllm_specext.demo.training_text import CHAIN, PROMPT, held_out_rows
from vllm_specext.measure.bundled import TARGET
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.griffin.acceptance import measure_acceptance
from vllm_specext.training.griffin.warm_start import warm_griffin_drafter

EXPECTED = {"code greedy": 2.6, "prose greedy": 3.0}
"""Tokens per verification by text."""


def measured(model: GriffinDrafter, target: LlamaForCausalLM, work: Path) -> dict[str, Any]:
    """By text: rows, tokens per verification, rates at each depth, and verifications. ``work`` has the encoded
    corpus."""
    return {
        name: {"rows": len(rows), **asdict(measure_acceptance(model, target, rows, PROMPT, CHAIN))}
        for name, rows in held_out_rows(target, work).items()
    }


def too_few(figures: dict[str, Any]) -> list[str]:
    """A sentence for each text on which fewer tokens than expected are accepted."""
    return [
        f"{name}: {figures[name]['tokens_per_verification']:.2f} tokens per verification; expected {least} or more."
        for name, least in EXPECTED.items()
        if figures[name]["tokens_per_verification"] < least
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the encoded corpus")
    parser.add_argument("--drafter", type=Path, required=True)
    args = parser.parse_args()
    target = LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)
    figures = measured(warm_griffin_drafter(target, args.drafter), target, args.work)
    print(json.dumps(figures, indent=1))
    sys.exit("\n".join(too_few(figures)) or None)


if __name__ == "__main__":
    main()
