"""Train a drafter for the bundled target that drafts all positions in one pass: none is bundled, and
``benchmarks/at_once_trees.py`` needs them. Each takes about a quarter of an hour on two slow cores.

    python -m vllm_specext.demo.make_rows --work WORK
    python -m vllm_specext.demo.train_at_once p-eagle --work WORK --out WORK/p_eagle
    python -m vllm_specext.demo.train_at_once pard --work WORK --out WORK/pard
"""

import argparse
import json
from pathlib import Path

import torch

from vllm_specext.demo import p_eagle, pard
from vllm_specext.demo.make_rows import FILE

MAKERS = {"p-eagle": p_eagle.make, "pard": pard.make}
STEPS = 800


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=MAKERS)
    parser.add_argument("--work", type=Path, required=True, help="folder of the rows that make_rows writes")
    parser.add_argument("--out", type=Path, required=True, help="folder for the drafter")
    parser.add_argument("--steps", type=int, default=STEPS, help="optimizer steps")
    args = parser.parse_args()
    lines = (args.work / FILE).read_text(encoding="utf-8").splitlines()
    MAKERS[args.kind]([torch.tensor(json.loads(line)["token_ids"]) for line in lines], args.out, args.steps)


if __name__ == "__main__":
    main()
