"""The number of drafted tokens that the scheduler chooses, beside every fixed number, in one engine.

    python -m benchmarks.chosen_drafts --output benchmarks/results/cpu/chosen

The rows of the demonstration, with the default's choice. All numbers take turns in one engine, so that they differ by
the number alone, and a machine that is slow for a minute is slow for all. The choice comes first, when the engine has
seen nothing of the load: that turn is told on its own. Then every round asks the same prompts with each fixed number
and with the choice, which goes on where it stopped. What is compared is the time of the process on its core, which
other programs disturb less than the clock on the wall. Every turn must give the tokens of drafting nothing, else
nothing is written. Writes ``NAME.json`` for each row.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.own_process import bundled_engine, in_own_process
from vllm_specext.measure.bundled import CONFIGURATIONS, as_long_as_it_pays, bundled_prompts
from vllm_specext.measure.engine import Engine
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Turn, in_turns, same_tokens

LOADS = (1, 2, 4, 8, 16, 32)
TOKENS, ROUNDS = 96, 9
LEAST, WAVES = 8, 2
"""Prompts of a turn at least, and for each request at a time. Turns are short, so that a machine which is slow for a
while is slow for all numbers."""
CHOSEN = -1


class Arms:
    """The scheduler's own choice, and fixed numbers in its place."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.scheduler = engine.core.scheduler
        self.choice = self.scheduler.measured_drafts
        self.sizes = sorted({0, *engine.engine.vllm_config.speculative_config.sizes})

    def ask(self, nodes: int, prompts: Sequence[list[int]], tokens: int, concurrency: int) -> Turn:
        """A turn with ``nodes``, or with what is ``CHOSEN``. Its duration is in seconds of the process."""
        self.scheduler.measured_drafts = self.choice if nodes == CHOSEN else None
        if nodes == CHOSEN:
            self.choice.follow()
        fixed = None if nodes == CHOSEN else nodes
        begun = time.process_time()
        turn = self.engine.turn(prompts, tokens, concurrency, fixed, ignore_eos=True)
        return replace(turn, duration=time.process_time() - begun)


def measure(name: str, loads: Sequence[int], rounds: int, tokens: int) -> Iterator[dict[str, Any]]:
    """A row for each load."""
    speculative = as_long_as_it_pays(dict(CONFIGURATIONS)[name])
    arms = Arms(bundled_engine(speculative | {"keep_step_costs": False}))
    texts = [arms.engine.tokenizer(row["text"])["input_ids"] for row in bundled_prompts()]
    for load in loads:
        prompts = cycle(texts)
        each = max(LEAST, WAVES * load)
        first = arms.ask(CHOSEN, list(islice(prompts, 3 * each)), tokens, load)
        for nodes in arms.sizes:
            # Nobody's first steps, in which passes are recorded, are timed.
            arms.ask(nodes, texts[: 2 * load], min(tokens, 16), load)
        asks: dict[int, Callable[[Sequence[list[int]]], Turn]] = {
            nodes: partial(arms.ask, nodes, tokens=tokens, concurrency=load) for nodes in (*arms.sizes, CHOSEN)
        }
        asked = [list(islice(prompts, each)) for _ in range(rounds)]
        told = f"{name}, {load} at a time"
        turns = in_turns(track(asked, told, console=Console(stderr=True)), asks)
        identical = all(same_tokens(own, turns[0]) for own in turns.values())
        yield row(name, load, first, turns, identical)


def row(name: str, load: int, first: Turn, turns: dict[int, list[Turn]], identical: bool) -> dict[str, Any]:
    seconds = {nodes: [round(turn.duration, 3) for turn in own] for nodes, own in turns.items()}
    chosen = seconds.pop(CHOSEN)
    best = fastest(seconds)
    speculation = sum((turn.speculation for turn in turns[CHOSEN]), start=Speculation())
    return {
        "name": name,
        "requests": load,
        "prompts": sum(len(turn.answers) for turn in turns[CHOSEN]),
        "identical": identical,
        "best": best,
        "chosen_to_best": ratio(best_of_others(seconds), chosen),
        "chosen_to_none": ratio(seconds[0], chosen),
        "best_to_none": ratio(seconds[0], best_of_others(seconds)),
        "first_to_none": round(3 * statistics.median(seconds[0]) / first.duration, 3),
        "drafted_per_verification": speculation.per_verification(speculation.nodes),
        "seconds": seconds,
        "chosen_seconds": chosen,
        "first_seconds": round(first.duration, 3),
    }


def fastest(seconds: Mapping[int, Sequence[float]], without: int | None = None) -> int:
    """The fixed number with the shortest median turn, ``without`` one of the rounds."""
    return min(
        seconds,
        key=lambda nodes: statistics.median(one for place, one in enumerate(seconds[nodes]) if place != without),
    )


def best_of_others(seconds: Mapping[int, Sequence[float]]) -> list[float]:
    """In each round the turn of the number that was fastest in the other rounds. The fastest in the round itself would
    be the luckiest, too: of several numbers that are equally good, one always seems better than another choice."""
    rounds = len(next(iter(seconds.values())))
    return [seconds[fastest(seconds, place if rounds > 1 else None)][place] for place in range(rounds)]


def ratio(baseline: Sequence[float], own: Sequence[float]) -> float:
    """Median over the rounds of how many times as fast ``own`` was."""
    return round(statistics.median(one / other for one, other in zip(baseline, own, strict=True)), 3)


def table(rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table(title="chosen numbers of drafted tokens")
    columns = "name", "requests", "identical", "best", "chosen_to_best", "chosen_to_none", "first_to_none"
    for column in columns:
        shown.add_column(column.replace("_", " "), justify="left" if column == "name" else "right")
    for each in rows:
        shown.add_row(*(str(each[column]) for column in columns))
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for NAME.json")
    parser.add_argument("--name", action="append", choices=[name for name, _ in CONFIGURATIONS], help="rows; all")
    parser.add_argument("--requests", action="append", type=int, help=f"loads {LOADS}")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(list(measure(*json.loads(args.one)))))
        return
    found = []
    for name in args.name or [name for name, _ in CONFIGURATIONS]:
        begun = time.perf_counter()
        rows = in_own_process(
            "benchmarks.chosen_drafts", name, [name, args.requests or LOADS, args.rounds, args.tokens], shows=True
        )
        Console(stderr=True).print(f"{name}: {time.perf_counter() - begun:.0f} s")
        found += rows
        if not all(each["identical"] for each in rows):
            sys.exit(f"error: {name} does not give the tokens of drafting nothing.")
        if args.output:
            args.output.mkdir(parents=True, exist_ok=True)
            path = args.output / f"{name}.json"
            path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    Console().print(table(found))


if __name__ == "__main__":
    main()
