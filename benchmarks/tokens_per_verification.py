"""Tokens per verification of EAGLE-3, GRIFFIN, DFlash and a small model, as a chain and as trees of three sizes.

    python -m benchmarks.tokens_per_verification --output benchmarks/results/cpu

The bundled drafters on all of the demonstration's held-out prompts, one prompt at a time, greedy and in float32, and
vLLM's own EAGLE-3 and DFlash, which draft chains. No small model with the target's tokenizer is bundled: the target
without two of its twelve layers stands for one, which says how many nodes help, not how good a real one is. Each
drafter has an engine with the published tree; before every run the
scheduler is told how many nodes to draft, as a schedule with this number for every load would tell it. As in the
demonstration, prompts whose plain continuation is a loop do not count. The intervals hold 95% of the figures that other
prompts would have given, as far as these prompts tell: they are drawn again, with replacement. Nothing is timed, so
that a busy machine gives the same figures. Every configuration must give the tokens of plain decoding, else nothing is
written. Writes ``tokens_per_verification.json`` and ``.png``.
"""

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.fewer_layers import write_without_layers
from vllm_specext.bench.configurations import ANY_LOAD, EAGLE3, Configuration
from vllm_specext.bench.plots import DPI
from vllm_specext.bench.prompt_files import load
from vllm_specext.bench.prompts import Prompt, Rendering
from vllm_specext.bench.results import placeless
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import compared_arguments, served
from vllm_specext.measure.bundled import DFLASH, MAX_TOKENS, MODELS, TARGET
from vllm_specext.measure.engine_process import EngineProcess
from vllm_specext.measure.loops import is_loop
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Turn
from vllm_specext.tree.budget import TreeShape, shape_for

CHAIN = 4
SIZES = (CHAIN, 8, 24, 59)
PUBLISHED = TreeShape(nodes=59, depth=6, top_k=10)
DEPTHS = {"dflash-tree": 4}
"""Where trees are not as deep as the published one: a block of the bundled DFlash drafter has four positions to
draft."""
WITHOUT_LAYERS = (0, 1, 2, 3, 4, 6, 8, 9, 10, 11)
"""The target's layers that the small model has."""
RESAMPLES = 10_000


def largest(method: str) -> TreeShape:
    return replace(PUBLISHED, depth=DEPTHS.get(method, PUBLISHED.depth))


def published(method: str, model: Path | None = None) -> dict[str, Any]:
    shape = largest(method)
    model = MODELS / method.removesuffix("-tree") if model is None else model
    keys = {"num_speculative_tokens": shape.nodes, "tree_depth": shape.depth, "tree_top_k": shape.top_k}
    return {"method": method, "model": str(model), **keys}


LOOKS = {
    "eagle3": ("EAGLE-3, vLLM's own method (chains only)", "#555555"),
    "eagle3-tree": ("EAGLE-3 with this plug-in", "#1f77b4"),
    "griffin": ("GRIFFIN with this plug-in", "#c2570c"),
    "dflash": ("DFlash, vLLM's own method (chains only)", "#777777"),
    "dflash-tree": ("DFlash with this plug-in", "#2a7f3e"),
    "draft-model-tree": ("a model of 10 of the target's 12 layers", "#6a4c93"),
}
"""Label and colour in the picture; dark colours, because figures stand on them in white."""


def drafters(small: Path) -> tuple[Configuration, ...]:
    """What is compared; ``small`` is the folder of the small model."""
    ours = {name: published(name) for name in ("eagle3-tree", "griffin", "dflash-tree")}
    ours["draft-model-tree"] = published("draft-model-tree", small)
    found = {"eagle3": EAGLE3, "dflash": DFLASH} | ours
    return tuple(Configuration(name, found[name]) for name in LOOKS)


def forced(drafter: Configuration, nodes: int) -> Configuration:
    """``drafter`` with ``nodes`` drafted under any load."""
    if not drafter.grows_trees or drafter.speculative is None:
        return drafter
    schedule = {"num_speculative_tokens_per_batch_size": [[1, ANY_LOAD, nodes]]}
    return replace(drafter, speculative=drafter.speculative | schedule)


def load_engine(drafter: Configuration, folder: Path) -> EngineProcess:
    arguments = [f"--model={served(None)}", *compared_arguments(None, [])]
    return EngineProcess(drafter.name, arguments, drafter.speculative, folder / f"{drafter.name}.log")


def answers(engine: EngineProcess, prompts: Sequence[list[int]], nodes: int | None, doing: str) -> list[Turn]:
    """Ask each prompt on its own."""
    return [engine.turn([prompt], MAX_TOKENS, 1, nodes) for prompt in track(prompts, description=doing)]


def check_same(name: str, given: Sequence[Turn], plain: Sequence[Turn]) -> None:
    """``ConfigurationError`` that names the first prompt with other tokens than plain decoding's."""
    for number, (own, other) in enumerate(zip(given, plain, strict=True), start=1):
        if own.tokens != other.tokens:
            raise ConfigurationError(f"{name}: prompt {number} got other tokens than plain decoding gives.")


def loops(turn: Turn) -> bool:
    (tokens,) = turn.tokens
    return is_loop(tokens)


def summary(given: Sequence[Turn], plain: Sequence[Turn], levels: int) -> dict[str, Any]:
    """Over the prompts that count, the raw counts of each included."""
    counted = [own.speculation for own, other in zip(given, plain, strict=True) if not loops(other)]
    told = sum(counted, Speculation())
    low, high = interval(counted)
    return {
        "tokens_per_verification": told.acceptance_length,
        "low": low,
        "high": high,
        "accepted_per_depth": [told.per_verification(count) for count in told.accepted[:levels]],
        "nodes_per_verification": told.per_verification(told.nodes),
        "verifications": int(told.verifications),
        "of_each_prompt": [
            {"verifications": int(one.verifications), "accepted_per_depth": list(map(int, one.accepted[:levels]))}
            for one in counted
        ],
    }


def interval(counted: Sequence[Speculation]) -> tuple[float, float]:
    """Bounds of 95% of the tokens per verification of prompts drawn from these with replacement."""
    verifications = np.array([one.verifications for one in counted])
    accepted = np.array([sum(one.accepted) for one in counted])
    drawn = np.random.default_rng(0).integers(len(counted), size=(RESAMPLES, len(counted)))
    figures = 1 + accepted[drawn].sum(axis=1) / verifications[drawn].sum(axis=1)
    low, high = np.percentile(figures, (2.5, 97.5))
    return round(float(low), 3), round(float(high), 3)


def measure(prompts: Sequence[Prompt]) -> tuple[list[Turn], list[dict[str, Any]]]:
    """The answers of plain decoding, and a row for each drafter and size."""
    rendering = Rendering(str(TARGET))
    ids = [rendering.ids(prompt) for prompt in prompts]
    rows = []
    with tempfile.TemporaryDirectory(prefix="vllm-specext-benchmark-") as folder:
        with load_engine(Configuration("plain"), Path(folder)) as engine:
            plain = answers(engine, ids, None, "plain")
        small = Path(folder) / "small"
        write_without_layers(TARGET, WITHOUT_LAYERS, small)
        for drafter in drafters(small):
            sizes = SIZES if drafter.grows_trees else (CHAIN,)
            with load_engine(forced(drafter, sizes[-1]), Path(folder)) as engine:
                for nodes in sizes:
                    name = f"{drafter.name}, {draft(drafter.name, nodes)}"
                    given = answers(engine, ids, nodes if drafter.grows_trees else None, name)
                    check_same(name, given, plain)
                    rows.append(row(forced(drafter, nodes), nodes, engine.facts["model_runner"], given, plain))
    return plain, rows


def row(
    drafter: Configuration, nodes: int, model_runner: str, given: Sequence[Turn], plain: Sequence[Turn]
) -> dict[str, Any]:
    shape = shape_for(nodes, largest(drafter.name))
    return {
        "drafter": drafter.name,
        "draft": draft(drafter.name, nodes),
        "tree_depth": shape.depth,
        "tree_top_k": candidates(drafter.name, shape),
        "speculative_config": without_places(drafter),
        "model_runner": model_runner,
        **summary(given, plain, shape.depth),
    }


def candidates(method: str, shape: TreeShape) -> int:
    """Tokens of a level that a tree of this shape is made of: a block's positions have as many in any tree."""
    return largest(method).top_k if method in DEPTHS and shape.top_k > 1 else shape.top_k


def without_places(drafter: Configuration) -> str:
    own = {"model": "10 of the target's 12 layers"} if drafter.name == "draft-model-tree" else {}
    return placeless(json.dumps((drafter.speculative or {}) | own))


def draft(method: str, nodes: int) -> str:
    """No more nodes than levels are a chain."""
    return f"{'chain' if nodes <= largest(method).depth else 'tree'} of {nodes}"


def table(rows: Sequence[dict[str, Any]], caption: str) -> Table:
    title = "tokens per verification, and share that accepts a token at depth 1, 2, ..."
    shown = Table(title=title, caption=caption, box=None, padding=(0, 1, 0, 0), pad_edge=False)
    shown.add_column("drafter", no_wrap=True)
    shown.add_column("draft", no_wrap=True)
    depths = range(1, 1 + PUBLISHED.depth)
    for column in ("tokens", "95%", *map(str, depths)):
        shown.add_column(column, justify="right", no_wrap=True)
    for row in rows:
        shown.add_row(
            row["drafter"],
            row["draft"],
            f"[bold]{row['tokens_per_verification']:.2f}[/bold]",
            f"{row['low']:.2f}-{row['high']:.2f}",
            *(f"{share:.2f}" for share in row["accepted_per_depth"]),
        )
    return shown


def picture(rows: Sequence[dict[str, Any]], prompts: int) -> Figure:
    """A group of bars for each size, a bar for each drafter with its interval as a whisker."""
    figure = Figure(figsize=(10, 5.4), layout="constrained")
    axes = figure.subplots()
    drafts = list(dict.fromkeys(row["draft"] for row in rows))
    beside = {draft: [row["drafter"] for row in rows if row["draft"] == draft] for draft in drafts}
    width = 0.15
    for drafter, (label, color) in LOOKS.items():
        own = [row for row in rows if row["drafter"] == drafter]
        values = [row["tokens_per_verification"] for row in own]
        spread = [
            [row["tokens_per_verification"] - row["low"] for row in own],
            [row["high"] - row["tokens_per_verification"] for row in own],
        ]
        places = []
        for row in own:
            group = beside[row["draft"]]
            places.append(drafts.index(row["draft"]) + width * (group.index(drafter) - (len(group) - 1) / 2))
        axes.bar(places, values, 0.94 * width, yerr=spread, capsize=2, label=label, color=color)
        for place, value in zip(places, values, strict=True):
            axes.text(place, 0.15, f"{value:.2f}", ha="center", color="white", weight="bold", size="small")
    axes.axhline(1, color="black", linewidth=1, linestyle="--", label="without drafts: 1")
    axes.set_xticks(range(len(drafts)), drafts)
    axes.set_xlabel("drafted tokens that the pass checks")
    axes.set_ylabel("tokens per pass")
    axes.set_ylim(0, 1.4 * max(row["high"] for row in rows))
    axes.set_title(
        "How many tokens one pass of the target model gives\n"
        f"(bundled models, {prompts} held-out prompts, greedy; whiskers: 95% interval)"
    )
    axes.legend(loc="upper left", ncols=2)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for tokens_per_verification.json and .png")
    args = parser.parse_args()
    prompts = load([], sys.maxsize)
    try:
        plain, rows = measure(prompts)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    looping, kinds = sum(map(loops, plain)), Counter(prompt.task for prompt in prompts)
    counts = ", ".join(f"{count} of {kind}" for kind, count in kinds.items())
    Console().print(table(rows, f"{len(plain)} prompts ({counts}), less {looping} that end in a loop; tokens as plain"))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        about = {"max_tokens": MAX_TOKENS, "prompts": dict(kinds), "looping": looping, "identical": True}
        path = args.output / "tokens_per_verification"
        path.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")
        picture(rows, len(plain) - looping).savefig(path.with_suffix(".png"), dpi=DPI)


if __name__ == "__main__":
    main()
