"""Tokens per verification of a drafter that gives all positions in one pass, and of one that drafts level by level.

    python -m vllm_specext.demo.make_rows --work WORK
    python -m vllm_specext.demo.train_at_once p-eagle --work WORK --out WORK/p_eagle
    python -m vllm_specext.demo.train_at_once pard --work WORK --out WORK/pard
    python -m benchmarks.at_once_trees peagle-tree --drafter WORK/p_eagle --output benchmarks/results/cpu
    python -m benchmarks.at_once_trees pard-tree --drafter WORK/pard --output benchmarks/results/cpu

No trained drafters of these kinds are bundled; the first commands make them, each in about twenty minutes on two slow
cores. P-EAGLE's stands beside the bundled drafter for EAGLE-3, and PARD's beside itself with ``draft-model-tree``. Both
are measured on all of the demonstration's held-out prompts, as in ``tokens_per_verification.py``, as a chain and as
trees of three sizes. Nothing is timed. Every configuration must give the tokens of plain decoding, else nothing is
written. Writes a JSON file of the method's name.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.tokens_per_verification import SIZES, answers, check_same, forced, load_engine, summary
from vllm_specext.bench.configurations import Configuration
from vllm_specext.bench.prompt_files import load
from vllm_specext.bench.prompts import Rendering
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import EAGLE3_TREE, TARGET

TRAINED = "training.json"
"""What the training leaves beside a drafter."""
LEVEL_BY_LEVEL = {"peagle-tree": "eagle3-tree", "pard-tree": "draft-model-tree"}
"""What each method is measured beside."""


class Drafts(NamedTuple):
    method: str
    depth: int
    sizes: Sequence[int]
    """Numbers of drafted tokens."""
    passes: int = 1
    """Of the drafter, for a tree."""

    @property
    def keys(self) -> dict[str, Any]:
        return {"method": self.method, "tree_depth": self.depth} | (
            {"draft_passes": self.passes} if self.method == "pard-tree" else {}
        )


def compared(method: str) -> list[Drafts]:
    passes = (1, 2, 3) if method == "pard-tree" else (1,)
    trees = [Drafts(method, 6, SIZES if number == 1 else SIZES[1:], number) for number in passes]
    return [Drafts(LEVEL_BY_LEVEL[method], 6, SIZES, 6), *trees, *(Drafts(method, 8, SIZES[-1:], n) for n in passes)]


def measure(method: str, folder: Path) -> list[dict[str, Any]]:
    prompts = load([], sys.maxsize)
    rendering = Rendering(str(TARGET))
    ids = [rendering.ids(prompt) for prompt in prompts]
    rows = []
    with tempfile.TemporaryDirectory(prefix="vllm-specext-benchmark-") as place:
        with load_engine(Configuration("plain"), Path(place)) as engine:
            plain = answers(engine, ids, None, "plain")
        for drafts in compared(method):
            model = {} if drafts.method == "eagle3-tree" else {"model": str(folder)}
            keys = EAGLE3_TREE | {"num_speculative_tokens": SIZES[-1], "tree_top_k": 10} | model | drafts.keys
            own = Configuration(drafts.method, keys)
            with load_engine(forced(own, SIZES[-1]), Path(place)) as engine:
                for nodes in drafts.sizes:
                    name = f"{drafts.method} of depth {drafts.depth}, {drafts.passes} passes, {nodes} tokens"
                    given = answers(engine, ids, nodes, name)
                    check_same(name, given, plain)
                    about = {"method": drafts.method, "depth": drafts.depth, "passes": drafts.passes, "nodes": nodes}
                    rows.append(about | summary(given, plain, min(drafts.depth, nodes)))
    return rows


def result_file(method: str) -> str:
    return f"{method.removesuffix('-tree')}_trees.json"


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="tokens per verification")
    for column in ("method", "depth", "passes", "drafted tokens", "per verification", "95%"):
        shown.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        figure, bounds = f"{row['tokens_per_verification']:.2f}", f"{row['low']:.2f}-{row['high']:.2f}"
        shown.add_row(row["method"], str(row["depth"]), str(row["passes"]), str(row["nodes"]), figure, bounds)
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("method", choices=LEVEL_BY_LEVEL)
    parser.add_argument("--drafter", type=Path, required=True, help="folder of the trained drafter")
    parser.add_argument("--output", type=Path, help="folder for the JSON file")
    args = parser.parse_args()
    try:
        rows = measure(args.method, args.drafter)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    Console().print(table(rows))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        trained = json.loads((args.drafter / TRAINED).read_text(encoding="utf-8"))
        made = {"trained": trained, "rows": rows}
        (args.output / result_file(args.method)).write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
