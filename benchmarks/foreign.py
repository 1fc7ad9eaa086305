"""Drafters with a foreign tokenizer on the bundled target: what they are worth, and where SLEM's time on the host goes.

    python -m benchmarks.foreign --output benchmarks/results/cpu [--rounds 2]

Each method in an engine of its own, with a drafter of the target's tokenizer (a GRIFFIN chain) beside them, at 1, 4 and
16 requests at once: the demonstration's held-out prompts, greedily. Every round asks them with drafts and without, in
turns, so that a machine that is slow for a while is slow for both; figures of tokens do not depend on the machine.
Prompts whose plain continuation is a loop do not count. Writes ``foreign.json`` and ``foreign.png``.
"""

import argparse
import json
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.own_process import bundled_engine, in_own_process
from vllm_specext.measure.arguments import MOST_REQUESTS
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, MODELS, SLEM, SLRS, TLI, bundled_prompts
from vllm_specext.measure.loops import is_loop
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Turn, in_turns, same_tokens, speedups

METHODS: dict[str, dict[str, Any]] = {
    "griffin chain": GRIFFIN_CHAIN,
    "slem, other BPE": SLEM,
    "slem, bytes": SLEM | {"model": str(MODELS / "foreign_bytes")},
    "tli": TLI,
    "slrs, bytes": SLRS,
}
BATCHES = (1, 4, 16)
TOKENS = 64


def one(request: dict[str, Any]) -> dict[str, Any]:
    """One method, in this process: a row for each of ``BATCHES``."""
    speculative = request["speculative"]
    length = speculative["num_speculative_tokens"]
    always = {"num_speculative_tokens_per_batch_size": [[1, MOST_REQUESTS, length]]}
    engine = bundled_engine(speculative | always)
    prompts = [engine.tokenizer.encode(prompt["text"]) for prompt in bundled_prompts()]

    def ask(batch: int, nodes: int, _: int = 0) -> Turn:
        return engine.turn(prompts, TOKENS, batch, nodes, ignore_eos=True)

    plain = ask(MOST_REQUESTS, 0)
    prompts = [prompt for prompt, tokens in zip(prompts, plain.tokens, strict=True) if not is_loop(tokens)]
    prompts = prompts[: MOST_REQUESTS * (len(prompts) // MOST_REQUESTS)]
    rows = []
    for batch in BATCHES:
        with parts(engine.speculator) as spent:
            turns = in_turns(range(request["rounds"]), {nodes: partial(ask, batch, nodes) for nodes in (0, length)})
        written = [engine.tokenizer.decode(tokens) for tokens in turns[length][0].tokens]
        size = sum(len(text.encode()) for text in written) / (TOKENS * len(prompts))
        rows.append({"requests_at_once": batch, **row(turns[length], turns[0], size, spent)})
    return {"prompts": len(prompts), "rows": rows}


def row(own: list[Turn], plain: list[Turn], token_bytes: float, spent: dict[str, list[float]]) -> dict[str, Any]:
    """The figures of turns with drafts, ``plain[i]`` being the turn without next to ``own[i]``; a token has
    ``token_bytes`` bytes of text on average."""
    told = sum((turn.speculation for turn in own), Speculation())
    speedup = speedups(own, plain)
    return {
        "identical": same_tokens(own, plain),
        "tokens_per_verification": told.acceptance_length,
        "accepted_per_drafted": round(sum(told.accepted) / told.nodes, 3),
        "bytes_per_verification": round(told.acceptance_length * token_bytes, 2),
        "tokens_per_second": round(statistics.median(turn.output_throughput for turn in own), 1),
        "speedup": speedup.median,
        "lowest": speedup.lowest,
        "highest": speedup.highest,
        "ms_per_step": {name: round(1000 * statistics.median(each), 3) for name, each in spent.items()},
    }


@contextmanager
def parts(speculator: Any) -> Iterator[dict[str, list[float]]]:
    """Seconds of each part of SLEM's steps, empty for other methods; one entry per step."""
    from vllm_specext.methods.foreign_vocab.slem import SlemSpeculator
    from vllm_specext.methods.foreign_vocab.text.bridge import Bridge

    spent: dict[str, list[float]] = defaultdict(list)
    if not isinstance(speculator, SlemSpeculator):
        yield spent
        return
    timed = [
        (speculator, "propose", "the whole draft"),
        (speculator, "_follow", "text to the drafter's tokens, with the wait for the target"),
        (Bridge, "commit", "of it, a request's own"),
        (speculator.drafter, "read", "the drafter reads"),
        (speculator, "_chain", "the drafter writes"),
        (Bridge, "convert", "a request's text to the target's tokens"),
    ]
    originals = [(owner, name, getattr(owner, name), name in vars(owner)) for owner, name, _ in timed]
    for owner, name, part in timed:
        setattr(owner, name, _timed(getattr(owner, name), spent[part]))
    try:
        yield spent
    finally:
        for owner, name, stock, own in originals:
            setattr(owner, name, stock) if own else delattr(owner, name)


def _timed(stock: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    def timed(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return stock(*args, **kwargs)
        finally:
            if kwargs.get("num_speculative_tokens", 1):  # not of a step that drafts nothing
                spent.append(time.perf_counter() - begun)

    return timed


def table(results: dict[str, Any]) -> Table:
    shown = Table(title="greedy, without looping prompts", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for column in ("method", "at once", "tokens per verification", "bytes", "of drafted", "x plain", "spread", "same"):
        shown.add_column(column, justify="left" if column == "method" else "right")
    for name, result in results.items():
        for row in result["rows"]:
            shown.add_row(
                name,
                str(row["requests_at_once"]),
                f"{row['tokens_per_verification']:.2f}",
                f"{row['bytes_per_verification']:.1f}",
                f"{row['accepted_per_drafted']:.0%}",
                f"{row['speedup']:.2f}",
                f"{row['lowest']:.2f}-{row['highest']:.2f}",
                "yes" if row["identical"] else "[red]NO[/red]",
            )
    return shown


def plot(results: dict[str, Any], path: Path) -> None:
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, result in results.items():
        at_once = [str(row["requests_at_once"]) for row in result["rows"]]
        left.plot(at_once, [row["tokens_per_verification"] for row in result["rows"]], marker="o", label=name)
        right.plot(at_once, [row["speedup"] for row in result["rows"]], marker="o")
    left.set(xlabel="requests at once", ylabel="tokens per verification")
    right.set(xlabel="requests at once", ylabel="speed relative to plain decoding")
    right.axhline(1, color="grey", linewidth=0.8)
    left.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for foreign.json and foreign.png")
    parser.add_argument("--rounds", type=int, default=2, help="how often everything is asked")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one)))
        return
    results = {
        name: in_own_process("benchmarks.foreign", name, {"speculative": speculative, "rounds": args.rounds})
        for name, speculative in track(METHODS.items(), description="drafting")
    }
    Console(width=110).print(table(results))
    if args.output is not None:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "foreign.json").write_text(json.dumps(results, indent=1) + "\n")
        plot(results, args.output / "foreign.png")


if __name__ == "__main__":
    main()
