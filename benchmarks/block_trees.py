"""Tokens per verification of DFlash and DSpark drafters that ``vllm-specext train`` makes, as chains and as trees.

    python -m vllm_specext.demo.make_rows --work WORK
    python -m benchmarks.block_trees --work WORK --output benchmarks/results/cpu

Drafters of two layers and seven drafted tokens are trained for the bundled target, with the same text, steps and rates:
DFlash's, DSpark's, and DSpark's with cross-entropy as the only loss. They are measured on all of the demonstration's
held-out prompts, as in ``tokens_per_verification.py``. Nothing is timed. Every configuration must give the tokens of
plain decoding, else nothing is written. Takes two hours on two slow cores; trainings that are done are not done again.
Writes ``block_trees.json``.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from benchmarks.held_out_rows import table
from benchmarks.tokens_per_verification import answers, check_same, forced, load_engine, summary
from vllm_specext.bench.configurations import Configuration
from vllm_specext.bench.prompt_files import load
from vllm_specext.bench.prompts import Rendering
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import TARGET
from vllm_specext.measure.turns import Turn

ROWS = "rows.jsonl"
"""What ``make_rows`` writes."""
DRAFTED = 7
SIZES = (4, DRAFTED, 8, 24, 59)
"""Drafted tokens; no more than a block's are a chain."""
RECIPE = {
    "steps": [400],
    "learning_rates": [8e-3],
    "optimizer": "muon",
    "warmup_steps": 20,
    "tokens_per_step": 1152,
    "packs": 4,
    "anchors": 128,
    "layers": 2,
    "mlp_size": 704,
    "decay": 4.0,
    "log_every": 50,
    "bfloat16": False,
}
OPTIONS = ("--max-length=288", "--temperature=0", "--dtype=float32", "--processes=1")


class Drafter(NamedTuple):
    method: str
    recipe: dict[str, Any]
    """What is its own."""


DRAFTERS = {
    "DFlash": Drafter("dflash", {"block_size": DRAFTED + 1}),
    "DSpark": Drafter("dspark", {"block_size": DRAFTED, "markov_rank": 64}),
    "DSpark, cross-entropy alone": Drafter(
        "dspark", {"block_size": DRAFTED, "markov_rank": 64, "token_weight": 1.0, "distance_weight": 0.0}
    ),
}


def train(drafter: Drafter, rows: Path, folder: Path) -> Path:
    """The folder of the trained drafter in ``folder``."""
    command = [sys.executable, "-m", "vllm_specext", "train", drafter.method, f"--target={TARGET}", *OPTIONS]
    keys = {**RECIPE, **drafter.recipe}
    told = [f"--data={rows}", f"--output={folder}", *(f"--set={key}={json.dumps(keys[key])}" for key in keys)]
    subprocess.run([*command, *told], check=True)
    return folder / "drafter"


def measure(
    method: str, model: Path, prompts: Sequence[list[int]], plain: Sequence[Turn], place: Path
) -> Iterator[dict[str, Any]]:
    keys = {"method": f"{method}-tree", "model": str(model), "num_speculative_tokens": SIZES[-1]}
    own = Configuration(f"{method}-tree", keys | {"tree_depth": DRAFTED, "tree_top_k": 10})
    with load_engine(forced(own, SIZES[-1]), place) as engine:
        for nodes in SIZES:
            name = f"{method} with {nodes} tokens"
            given = answers(engine, prompts, nodes, name)
            check_same(name, given, plain)
            yield {"nodes": nodes, **summary(given, plain, min(DRAFTED, nodes))}


def measured(work: Path) -> list[dict[str, Any]]:
    models = {name: train(of, work / ROWS, work / f"block-{i}") for i, (name, of) in enumerate(DRAFTERS.items())}
    rendering = Rendering(str(TARGET))
    prompts = [rendering.ids(prompt) for prompt in load([], sys.maxsize)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="vllm-specext-benchmark-") as place:
        with load_engine(Configuration("plain"), Path(place)) as engine:
            plain = answers(engine, prompts, None, "plain")
        for name, drafter in DRAFTERS.items():
            found = measure(drafter.method, models[name], prompts, plain, Path(place))
            rows += [{"drafter": name, "method": f"{drafter.method}-tree", **row} for row in found]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of rows.jsonl, for drafters and logs")
    parser.add_argument("--output", type=Path, required=True, help="folder for block_trees.json")
    asked = parser.parse_args()
    try:
        rows = measured(asked.work)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    shown = [{key: row[key] for key in ("drafter", "nodes", "tokens_per_verification", "low", "high")} for row in rows]
    Console().print(table("tokens per verification", shown))
    recipes = {name: RECIPE | drafter.recipe for name, drafter in DRAFTERS.items()}
    asked.output.mkdir(parents=True, exist_ok=True)
    (asked.output / "block_trees.json").write_text(json.dumps({"recipes": recipes, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
