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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from matplotlib import pyplot
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.drafters import prompts
from benchmarks.engines import ENGINE, MOST_REQUESTS, in_own_process
from vllm_specext.demo.loops import is_loop
from vllm_specext.demo.run import Speculation, counted
from vllm_specext.demo.server import GRIFFIN_CHAIN, MODELS, SLEM, SLRS, TLI

METHODS: dict[str, dict[str, Any]] = {
    "griffin chain": GRIFFIN_CHAIN,
    "slem, other BPE": SLEM,
    "slem, bytes": SLEM | {"model": str(MODELS / "foreign_bytes")},
    "tli": TLI,
    "slrs, bytes": SLRS,
}
BATCHES = (1, 4, 16)
TOKENS = 64


class Engine:
    def __init__(self, speculative: dict[str, Any]) -> None:
        from vllm import LLM, SamplingParams

        self.nodes = speculative["num_speculative_tokens"]
        schedule = [[1, MOST_REQUESTS, self.nodes]]
        always = {"num_speculative_tokens_per_batch_size": schedule}
        self.llm = LLM(**ENGINE, speculative_config=speculative | always, disable_log_stats=False)
        core: Any = self.llm.llm_engine.engine_core
        self.scheduler = core.engine_core.scheduler
        self.speculator = core.engine_core.model_executor.driver_worker.worker.model_runner.speculator
        self.params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)

    def ask(self, texts: Sequence[str], batch: int, drafts: bool) -> tuple[list[Any], float]:
        """Answers and seconds; ``batch`` of them at once."""
        lookup = self.scheduler.dynamic_sd_lookup
        lookup[:] = [self.nodes if drafts else 0] * len(lookup)
        answers, begun = [], time.perf_counter()
        for first in range(0, len(texts), batch):
            asked = list(texts[first : first + batch])
            answers += [done.outputs[0] for done in self.llm.generate(asked, self.params, use_tqdm=False)]
        return answers, time.perf_counter() - begun

    def counted(self) -> Speculation:
        return counted(self.llm.get_metrics())


def one(request: dict[str, Any]) -> dict[str, Any]:
    engine = Engine(request["speculative"])
    texts = [prompt["text"] for prompt in prompts()]
    plain, _ = engine.ask(texts, MOST_REQUESTS, drafts=False)
    texts = [text for text, answer in zip(texts, plain, strict=True) if not is_loop(list(answer.token_ids))]
    texts = texts[: MOST_REQUESTS * (len(texts) // MOST_REQUESTS)]
    rows = []
    for batch in BATCHES:
        seconds: dict[bool, list[float]] = {True: [], False: []}
        with parts(engine.speculator) as spent:
            before, drafted = engine.counted(), []
            for _ in range(request["rounds"]):
                for drafts in (False, True):
                    answers, took = engine.ask(texts, batch, drafts)
                    seconds[drafts].append(took)
                    if drafts:
                        drafted = answers
                    else:
                        plain = answers
        told = engine.counted() - before
        ratios = [slow / fast for slow, fast in zip(seconds[False], seconds[True], strict=True)]
        size = sum(len(answer.text.encode()) for answer in drafted) / (TOKENS * len(texts))
        rows.append(
            {
                "requests_at_once": batch,
                "identical": [list(a.token_ids) for a in plain] == [list(a.token_ids) for a in drafted],
                "tokens_per_verification": told.acceptance_length,
                "accepted_per_drafted": round(sum(told.accepted) / told.nodes, 3),
                "bytes_per_verification": round(told.acceptance_length * size, 2),
                "tokens_per_second": round(statistics.median(TOKENS * len(texts) / took for took in seconds[True]), 1),
                "speedup": round(statistics.median(ratios), 3),
                "lowest": round(min(ratios), 3),
                "highest": round(max(ratios), 3),
                "ms_per_step": {name: round(1000 * statistics.median(each), 3) for name, each in spent.items()},
            }
        )
    return {"prompts": len(texts), "rows": rows}


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
