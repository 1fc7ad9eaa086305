"""Which parts of a drafter's training matter: small drafters for the bundled target that differ by one thing.

    python -m benchmarks.ablation --work WORK --output benchmarks/results/cpu/ablation

Each row is trained with several seeds, all with the same steps, rates and text, on one core. A seed gives the first
weights, the order of the text and the noise. What counts are the tokens per verification of greedy chains of 4 on the
target's own continuations of held-out text, the same ones for all. The chains are simulated, so that no engine runs,
and nothing is timed. A row is compared with the reference of its group, over the seeds that both have.

Every run leaves a file in the output folder, and is not made again while this is there: an interrupted benchmark goes
on with the same command. ``--runs N`` ends it after so many runs, and ``--runs 0`` only shows what there is. Writes
``ablation.png`` too.
"""

import argparse
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.ablation import report, runs
from benchmarks.ablation.chains import counts
from benchmarks.ablation.features import kept_features
from benchmarks.ablation.plot import of_runs
from benchmarks.ablation.rows import BY_NAME, ROWS, SEEDS, Row, in_turns
from benchmarks.ablation.training import PACKS, TOKENS, recipe_of, train
from vllm_specext.bench.plots import DPI
from vllm_specext.demo.tokens import keep_corpus
from vllm_specext.demo.training_text import held_out_rows, training_rows
from vllm_specext.measure.bundled import TARGET
from vllm_specext.training.fingerprint import fingerprint
from vllm_specext.training.shards import Shard

STEPS = (130, 50, 140)
"""Of the stages, less than a quarter of the bundled drafters' steps."""
RATES = (8e-3, 4.8e-3, 4.8e-3)
TEXTS, CONTINUATIONS = 1600, 800
"""Rows of corpus text and of the target's own text."""
PROMPTS = 96
"""Of code and of prose each; those whose continuation is a loop do not count."""
PICTURE = "ablation.png"


def prepare(work: Path, target: LlamaForCausalLM) -> tuple[Shard, dict[str, Tensor]]:
    """The text to train on with the target's hidden states, and held-out rows ``[N, T]`` of the target's own text by
    kind."""
    keep_corpus(work)
    text = training_rows(target, work, TEXTS, CONTINUATIONS)
    held_out = held_out_rows(target, work, PROMPTS)
    shard = kept_features(target, fingerprint(TARGET), text, work)
    return shard, {kind: held_out[f"{kind} greedy"] for kind in ("code", "prose")}


def make(row: Row, seed: int, target: LlamaForCausalLM, text: Shard, held_out: dict[str, Tensor]) -> dict[str, Any]:
    """Train and measure: what is written of one run."""
    started = time.monotonic()
    recipe = recipe_of(row, seed, STEPS, RATES)
    model, log = train(row, target, text, recipe)
    minutes = (time.monotonic() - started) / 60
    return {
        "row": row.name,
        "seed": seed,
        "steps": list(STEPS),
        "learning_rates": list(RATES),
        "tokens_per_step": PACKS * TOKENS,
        "text": {"rows": len(text), "tokens": text.tokens, "sha256": text.source},
        "prompts": {kind: len(rows) for kind, rows in held_out.items()},
        "of_each_prompt": counts(model, target, [row for rows in held_out.values() for row in rows]),
        "log": log,
        "minutes": round(minutes, 2),
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }


def make_missing(missing: Sequence[tuple[Row, int]], work: Path, output: Path, console: Console) -> None:
    """The runs of ``missing``, one after the other, each with the time that is left for them."""
    target = LlamaForCausalLM.from_pretrained(TARGET).float().eval().requires_grad_(False)
    text, held_out = prepare(work, target)
    known = [run["minutes"] for run in runs.read(output, ROWS).values()]
    for number, (row, seed) in enumerate(missing, start=1):
        left = f", about {(len(missing) - number + 1) * sum(known) / len(known):.0f} minutes left" if known else ""
        console.print(f"run {number} of {len(missing)}: {row.name}, seed {seed}{left}")
        run = make(row, seed, target, text, held_out)
        for other in runs.read(output, ROWS).values():
            runs.check_same(other, run)
        runs.write(output, row, seed, run)
        known.append(run["minutes"])


def show(output: Path, console: Console) -> None:
    """Print the table and write the picture."""
    done = runs.read(output, ROWS)
    shown = Table(title="tokens per verification, 95% intervals", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in report.HEADER:
        shown.add_column(column)
    for line in report.lines(done, ROWS):
        shown.add_row(*line)
    console.print(shown)
    if done:
        of_runs(done).savefig(output / PICTURE, dpi=DPI)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the encoded text, which is made if needed")
    parser.add_argument("--output", type=Path, required=True, help="folder of the runs")
    parser.add_argument("--rows", nargs="+", choices=BY_NAME, default=list(BY_NAME), help="rows to train; all")
    parser.add_argument("--seeds", type=int, default=SEEDS, help="of each row")
    parser.add_argument("--runs", type=int, help="make so many of those that are missing; all")
    args = parser.parse_args()
    torch.set_num_threads(1)
    console = Console()
    asked = in_turns([BY_NAME[name] for name in args.rows], args.seeds)
    missing = [(row, seed) for row, seed in asked if not runs.path_of(args.output, row, seed).exists()][: args.runs]
    if missing:
        make_missing(missing, args.work, args.output, console)
    show(args.output, console)


if __name__ == "__main__":
    main()
