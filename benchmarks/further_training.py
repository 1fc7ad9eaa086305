"""What further training of a multi-token prediction module brings, by passes over each batch.

    python -m benchmarks.further_training --work WORK --output benchmarks/results/cpu

The target is the bundled one in MiMo's layout. Its module begins with random weights, and learns to predict one token,
as modules are released: one pass. Then it is trained further, with one pass and with three. Each training ends with an
engine that answers held-out prompts greedily, with chains of five tokens; the tokens must be those of plain decoding.
Nothing is timed. Writes ``further_training.json``.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.chats import write_chats
from benchmarks.held_out_rows import table
from benchmarks.mimo import make_mimo

CHATS = 120
FIRST, FURTHER = {"steps": [120], "learning_rates": [8e-3]}, {"steps": [80], "learning_rates": [3e-3]}
SMALL = {
    "optimizer": "muon",
    "warmup_steps": 5,
    "tokens_per_step": 1024,
    "packs": 2,
    "log_every": 20,
    "bfloat16": False,
}
OPTIONS = ("--samples=120", "--max-length=160", "--temperature=0", "--dtype=float32", "--processes=1")


def train(folder: Path, target: Path, recipe: dict[str, Any], *options: str) -> dict[str, Any]:
    """What an engine accepted of the module that the training leaves in ``folder / "drafter"``."""
    command = [sys.executable, "-m", "vllm_specext", "train", "mtp", f"--target={target}", f"--output={folder}"]
    command += [f"--data={target.parent / 'chats.jsonl'}", *OPTIONS, *options]
    command += [f"--set={key}={json.dumps(value)}" for key, value in (SMALL | recipe).items()]
    subprocess.run(command, check=True)
    check: dict[str, Any] = json.loads((folder / "check.json").read_text())
    if not check["identical"]:
        raise RuntimeError(f"{folder}: tokens differ from plain decoding's")
    kept = ("tokens_per_verification", "verifications", "accepted_per_depth")
    return {**recipe, **{key: check["served"][key] for key in kept}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a new folder for target, modules and logs")
    parser.add_argument("--output", type=Path, required=True, help="folder for further_training.json")
    asked = parser.parse_args()
    (asked.work / "target").mkdir(parents=True)
    target = make_mimo(asked.work / "target")
    write_chats(asked.work / "chats.jsonl", CHATS)
    first = asked.work / "first"
    rows = [{"begins_with": "random weights", **train(first, target, FIRST | {"passes": 1, "seed": 0})}]
    for seed in (0, 1):
        for passes in (1, 3):
            folder = asked.work / f"{passes}-passes-seed-{seed}"
            found = train(folder, target, FURTHER | {"passes": passes, "seed": seed}, f"--init={first / 'drafter'}")
            rows.append({"begins_with": "the first row's", **found})
    Console().print(table("tokens per verification of chains of five", rows))
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "further_training.json").write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
