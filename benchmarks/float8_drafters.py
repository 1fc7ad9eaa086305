"""Tokens per verification of drafters whose weights are in float8.

    python -m benchmarks.float8_drafters --output benchmarks/results/cpu

The bundled drafters on the demonstration's held-out prompts, one at a time, greedy and in bfloat16; prompts whose plain
continuation is a loop do not count. Nothing is timed, so that a busy machine gives the same figures: what float8 saves
is memory traffic on GPUs. In bfloat16 a verification of several rows may round otherwise than a step of plain decoding;
the table says of how many prompts the tokens are the same. Writes ``float8_drafters.json``.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.tokens_per_verification import answers, loops, summary
from vllm_specext.bench.prompt_files import load
from vllm_specext.bench.prompts import Prompt, Rendering
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.arguments import compared_arguments, served
from vllm_specext.measure.bundled import EAGLE3_TREE, GRIFFIN_CHAIN, GRIFFIN_TREE, MAX_TOKENS, MOA_TREE, TARGET
from vllm_specext.measure.engine_process import EngineProcess

LAYERS, HEAD = {"quantization": "fp8_per_channel"}, {"draft_lm_head_quantization": "fp8"}
WEIGHTS = {"bfloat16": {}, "output layer in float8": HEAD, "all in float8": LAYERS | HEAD}
DRAFTERS = {
    "griffin-chain": (GRIFFIN_CHAIN, tuple(WEIGHTS)),
    "griffin-tree": (GRIFFIN_TREE, tuple(WEIGHTS)),
    "eagle3-tree": (EAGLE3_TREE, tuple(WEIGHTS)),
    "moa-tree": (MOA_TREE, ("bfloat16", "output layer in float8")),
}
"""Keys, and which weights the method has."""
IN_BFLOAT16 = ("--dtype=bfloat16",)


def measure(prompts: Sequence[Prompt]) -> list[dict[str, Any]]:
    rendering = Rendering(str(TARGET))
    ids = [rendering.ids(prompt) for prompt in prompts]
    arguments = [f"--model={served(None)}", *compared_arguments(None, IN_BFLOAT16)]
    rows = []
    with tempfile.TemporaryDirectory(prefix="vllm-specext-benchmark-") as folder:
        with EngineProcess("plain", arguments, None, Path(folder) / "plain.log") as engine:
            plain = answers(engine, ids, None, "plain")
        for drafter, (keys, ways) in DRAFTERS.items():
            for weights in ways:
                log = Path(folder) / f"{drafter} {weights}.log"
                with EngineProcess(drafter, arguments, keys | WEIGHTS[weights], log) as engine:
                    given = answers(engine, ids, None, f"{drafter}, {weights}")
                rows.append(
                    {
                        "drafter": drafter,
                        "weights": weights,
                        "same_tokens": sum(own.tokens == other.tokens for own, other in zip(given, plain, strict=True)),
                        **summary(given, plain, keys.get("tree_depth", keys["num_speculative_tokens"])),
                    }
                )
        print(f"{sum(map(loops, plain))} of {len(plain)} prompts end in a loop and do not count")
    return rows


def table(rows: Sequence[dict[str, Any]], prompts: int) -> Table:
    shown = Table(title="tokens per verification by the drafter's weights")
    for column in ("drafter", "weights", "per verification", "95%", "same tokens"):
        shown.add_column(column, justify="left" if column in ("drafter", "weights") else "right")
    for row in rows:
        shown.add_row(
            row["drafter"],
            row["weights"],
            f"{row['tokens_per_verification']:.2f}",
            f"{row['low']:.2f}-{row['high']:.2f}",
            f"{row['same_tokens']} of {prompts}",
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for float8_drafters.json")
    parser.add_argument("--prompts-per-task", type=int, default=sys.maxsize, help="fewer prompts, of code and of prose")
    args = parser.parse_args()
    prompts = load([], args.prompts_per_task)
    try:
        rows = measure(prompts)
    except ConfigurationError as error:
        sys.exit(f"error: {error}")
    Console().print(table(rows, len(prompts)))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        about = {"max_tokens": MAX_TOKENS, "prompts": len(prompts)}
        path = args.output / "float8_drafters.json"
        path.write_text(json.dumps({**about, "rows": rows}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
