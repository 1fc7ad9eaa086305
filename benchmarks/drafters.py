"""Tokens per verification of drafters with draft trees of one size, on the demonstration's held-out prompts.

    python -m benchmarks.drafters --output benchmarks/results/cpu [--extra "moa N=1" FOLDER ...]

The bundled GRIFFIN and MoA drafters, and further MoA checkpoints for the bundled target: each in a process of its own,
one prompt at a time, greedy and in float32, with the demonstration's tree. As there, prompts whose plain continuation
is a loop do not count. Nothing is timed, so that a busy machine gives the same figures. Writes ``drafters.json`` and
``.png``; a row also says whether all prompts got the tokens of plain decoding, and what the checkpoint's folder says
of its training.
"""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.engines import ENGINE, in_own_process
from vllm_specext.demo.loops import is_loop
from vllm_specext.demo.run import MAX_TOKENS, PROMPTS, Speculation, counted
from vllm_specext.demo.server import GRIFFIN_TREE, MOA_TREE
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.moa.checkpoint import read_shape

BUNDLED = {"griffin": GRIFFIN_TREE, "moa N=0": MOA_TREE}
Answers = list[tuple[list[int], Speculation]]
"""Of every prompt: the tokens, and what drafting them took."""


def drafters(extra: Sequence[tuple[str, str]]) -> dict[str, dict[str, Any]]:
    """``speculative_config`` by name; ``ConfigurationError`` for a folder that holds no MoA checkpoint."""
    found = dict(BUNDLED)
    for name, folder in extra:
        if name in found:
            raise ConfigurationError(f"--extra names {name!r}, but there is a drafter of that name already.")
        if not Path(folder).is_dir():
            raise ConfigurationError(f"--extra {name!r}: {folder} is not a folder.")
        read_shape(Path(folder))
        found[name] = MOA_TREE | {"model": folder}
    return found


def generate(speculative: dict[str, Any] | None) -> list[dict[str, Any]]:
    """What `answers` makes of an engine, in this process."""
    from vllm import LLM, SamplingParams

    llm = LLM(**ENGINE, speculative_config=speculative, disable_log_stats=False)
    params = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    made, before = [], Speculation()
    for prompt in prompts():
        (answer,) = llm.generate(prompt["text"], params, use_tqdm=False)
        now = counted(llm.get_metrics())
        made.append({"tokens": list(answer.outputs[0].token_ids), "speculation": asdict(now - before)})
        before = now
    return made


def answers(name: str, speculative: dict[str, Any] | None) -> Answers:
    """Of an engine in a process of its own."""
    made = in_own_process("benchmarks.drafters", name, speculative)
    return [(one["tokens"], Speculation(**one["speculation"])) for one in made]


def prompts() -> list[dict[str, str]]:
    """Each with its ``text`` and its ``kind``."""
    found: list[dict[str, str]] = json.loads(PROMPTS.read_text(encoding="utf-8"))
    return found


def summary(name: str, folder: Path, given: Answers, plain: Answers, kinds: Sequence[str]) -> dict[str, Any]:
    by_kind: dict[str, Speculation] = {}
    for (_, speculation), (tokens, _), kind in zip(given, plain, kinds, strict=True):
        if not is_loop(tokens):
            by_kind[kind] = by_kind.get(kind, Speculation()) + speculation
    told = sum(by_kind.values(), Speculation())
    return {
        "drafter": name,
        "tokens_per_verification": told.acceptance_length,
        "by_kind": {kind: speculation.acceptance_length for kind, speculation in by_kind.items()},
        "accepted_per_depth": [told.per_verification(count) for count in told.accepted],
        "nodes_per_verification": told.per_verification(told.nodes),
        "verifications": int(told.verifications),
        "identical": [tokens for tokens, _ in given] == [tokens for tokens, _ in plain],
        **from_folder(folder),
    }


def from_folder(folder: Path) -> dict[str, Any]:
    """Steps of its training, and tokens per verification of the drafter alone, in greedy chains, as its trainer
    measured them; ``None`` where the folder does not say."""
    steps, alone = None, None
    if (file := folder / "training.json").is_file():
        recipe = json.loads(file.read_text())["recipe"]
        steps = recipe["steps"] if "steps" in recipe else sum(recipe["steps_per_stage"])
    if (file := folder / "acceptance.json").is_file():
        alone = {text: round(row["tokens_per_verification"], 3) for text, row in json.loads(file.read_text()).items()}
    return {"training_steps": steps, "drafter_alone": alone}


def table(rows: list[dict[str, Any]], caption: str) -> Table:
    title = "tokens per verification, and share that accepts a token at depth 1, 2, ..."
    shown = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("drafter")
    depths = range(1, 1 + len(rows[0]["accepted_per_depth"]))
    for column in ("steps", "all", *rows[0]["by_kind"], *map(str, depths), "same"):
        shown.add_column(column, justify="right", min_width=4)  # a long name is broken, figures are not
    for row in rows:
        shown.add_row(
            row["drafter"],
            str(row["training_steps"] or ""),
            f"[bold]{row['tokens_per_verification']:.2f}[/bold]",
            *(f"{value:.2f}" for value in row["by_kind"].values()),
            *(f"{share:.2f}" for share in row["accepted_per_depth"]),
            "yes" if row["identical"] else "[red]NO[/red]",
        )
    return shown


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Share of the verifications that accept a token at each depth, a line per drafter."""
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    for row in rows:
        shares = row["accepted_per_depth"]
        label = f"{row['drafter']}: {row['tokens_per_verification']:.2f}"
        axes.plot(range(1, 1 + len(shares)), shares, marker="o", label=label)
    axes.set_xticks(range(1, 1 + len(rows[0]["accepted_per_depth"])))
    axes.set_xlabel("depth in the draft tree")
    axes.set_ylabel("share of verifications that accept a token")
    axes.set_ylim(0, 1)
    axes.legend(title="tokens per verification")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for drafters.json and .png")
    parser.add_argument(
        "--extra",
        nargs=2,
        action="append",
        default=[],
        metavar=("NAME", "FOLDER"),
        help="a further MoA checkpoint for the bundled target; may be given several times",
    )
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(generate(json.loads(args.one))))
        return
    try:
        chosen = drafters(args.extra)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    given = {
        name: answers(name, speculative)
        for name, speculative in track(({"plain": None} | chosen).items(), description="drafting")
    }
    plain, kinds = given.pop("plain"), [prompt["kind"] for prompt in prompts()]
    rows = [summary(name, Path(chosen[name]["model"]), own, plain, kinds) for name, own in given.items()]
    looping = sum(is_loop(tokens) for tokens, _ in plain)
    counts = ", ".join(f"{count} of {kind}" for kind, count in Counter(kinds).items())
    Console().print(table(rows, f"{len(kinds)} prompts ({counts}), less {looping} that end in a loop; same: as plain"))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        tree = {key: value for key, value in MOA_TREE.items() if key not in ("method", "model")}
        about = {"tree": tree, "max_tokens": MAX_TOKENS, "prompts": dict(Counter(kinds)), "looping": looping}
        (args.output / "drafters.json").write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n")
        plot(rows, args.output / "drafters.png")


if __name__ == "__main__":
    main()
