"""Where a step's time goes on the host, by part, without drafts and with GRIFFIN's and MoA's chains and trees.

    python -m benchmarks.step_profile --output benchmarks/results/cpu

Every configuration runs in a process of its own, one engine each, and generates greedily for 1 and for 16 requests at
once; the steps after those that read the prompts are timed. The parts (``step_parts.py``) are timed by wrapping their
functions; a part's time is its own, without that of parts inside it, and what counts is the thread's time on its core.
Of three rounds the one with the median step is taken. On a CPU that is all there is; on a GPU it is the time of
launching, which must stay below that of computing.
"""

import argparse
import json
import time
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.own_process import bundled_engine, in_own_process
from benchmarks.step_parts import PARTS, functions_of
from benchmarks.stopwatch import Stopwatch, Watched
from vllm_specext.measure.arguments import MOST_REQUESTS
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, MODELS

BATCHES = (1, MOST_REQUESTS)
ROUNDS = 3
TOKENS = 64
PROMPT = range(40, 140)
"""After a first token of each request's own."""
ENGINE_ITSELF = "engine"
"""The part that has the rest of a step: turning tokens into text, and the code between the other parts."""


def tree(nodes: int, top_k: int, method: str = "griffin") -> dict[str, Any]:
    """Trees of ``nodes`` at every load."""
    drafter = {"method": method, "model": str(MODELS / method), "num_speculative_tokens": nodes}
    return drafter | {"tree_top_k": top_k, "num_speculative_tokens_per_batch_size": [[1, MOST_REQUESTS, nodes]]}


CONFIGURATIONS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "griffin, chain of 4": GRIFFIN_CHAIN,
    "griffin, tree of 24": tree(24, 4),
    "griffin, tree of 59": tree(59, 10),
    "moa, chain of 4": GRIFFIN_CHAIN | {"method": "moa", "model": str(MODELS / "moa")},
    "moa, tree of 24": tree(24, 4, "moa"),
}


def profile(name: str) -> dict[str, Any]:
    """Milliseconds per step and part, and tokens per step and request, by batch size."""
    speculative = CONFIGURATIONS[name]
    engine = bundled_engine(speculative, counts=False).engine
    # Of the thread, which other processes on a busy machine do not slow down: engines compute in one thread here.
    stopwatch, functions = Stopwatch(time.thread_time), functions_of(speculative)
    for function in functions:
        stopwatch.wrap(function)
    found: dict[str, Any] = {}
    for batch in BATCHES:
        rounds = [measure(engine, batch, stopwatch, functions) for _ in range(1 + ROUNDS)][1:]  # the first warms up
        found[str(batch)] = sorted(rounds, key=step)[ROUNDS // 2]
    return found


def measure(engine: Any, batch: int, stopwatch: Stopwatch, functions: Iterable[Watched]) -> dict[str, Any]:
    """The steps after those that read the prompts."""
    from vllm import SamplingParams
    from vllm.inputs import tokens_input

    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    for request in range(batch):
        engine.add_request(str(request), tokens_input([1 + request, *PROMPT]), params)
    begun, emitted = stopwatch.clock(), dict[str, int]()
    while len(emitted) < batch:
        emitted |= {output.request_id: len(output.outputs[0].token_ids) for output in engine.step()}
    read = stopwatch.clock()
    stopwatch.clear()
    while engine.has_unfinished_requests():
        engine.step()
    took = stopwatch.clock() - read
    refuse_uncalled(functions, stopwatch)
    steps = stopwatch.calls["target"]
    parts = {part: 1000 * stopwatch.seconds[part] / steps for part in PARTS if part in stopwatch.seconds}
    parts[ENGINE_ITSELF] = 1000 * took / steps - sum(parts.values())
    return {
        "steps": steps,
        "tokens_per_step": (TOKENS - sum(emitted.values()) / batch) / steps,
        "prompts_milliseconds": 1000 * (read - begun),
        "milliseconds": parts,
    }


def refuse_uncalled(functions: Iterable[Watched], stopwatch: Stopwatch) -> None:
    """A part that nothing calls any more would read as one that takes no time."""
    if uncalled := [function for function in functions if function not in stopwatch.called]:
        named = ", ".join(f"{function.path} ({function.part})" for function in uncalled)
        raise RuntimeError(f"never called, although they belong to this configuration: {named}.")


def step(result: dict[str, Any]) -> float:
    return float(sum(result["milliseconds"].values()))


def table(results: dict[str, Any], batch: int) -> Table:
    title = f"milliseconds per step, {batch} request{'s' if batch > 1 else ''} at once"
    shown = Table(title=title, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    shown.add_column("part", no_wrap=True)
    for name in results:
        shown.add_column(name, justify="right")
    own = [result[str(batch)] for result in results.values()]
    for part in (*PARTS, ENGINE_ITSELF):
        times = [one["milliseconds"].get(part) for one in own]
        shown.add_row(part, *("" if time is None else f"{time:.2f}" for time in times))
    shown.add_section()
    shown.add_row("step", *(f"{step(one):.2f}" for one in own))
    shown.add_row("tokens of a request", *(f"{one['tokens_per_step']:.2f}" for one in own))
    shown.add_row("reading the prompts", *(f"{one['prompts_milliseconds']:.0f}" for one in own))
    return shown


def plot(results: dict[str, Any], path: Path) -> None:
    """A stacked bar per configuration and batch size."""
    figure, axes = pyplot.subplots(1, len(BATCHES), figsize=(13, 5.5), layout="constrained")
    colours = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
    for axis, batch in zip(axes, BATCHES, strict=True):
        own = [result[str(batch)]["milliseconds"] for result in results.values()]
        bottoms = [0.0] * len(own)
        for colour, part in zip(cycle(colours), (*PARTS, ENGINE_ITSELF), strict=False):
            heights = [times.get(part, 0.0) for times in own]
            axis.bar(range(len(own)), heights, bottom=bottoms, color=colour, label=part)
            bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
        axis.set_xticks(range(len(own)), [name.replace(", ", "\n") for name in results])
        axis.set_title(f"{batch} at once")
    axes[0].set_ylabel("milliseconds per step")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles[::-1], labels[::-1], loc="outside right center")  # in the bars' order
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for step_profile.json and .png")
    parser.add_argument("--one", type=json.loads, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(profile(args.one)))
        return
    results = {
        name: in_own_process("benchmarks.step_profile", name, name)
        for name in track(CONFIGURATIONS, description="profiling")
    }
    console = Console()
    for batch in BATCHES:
        console.print(table(results, batch))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "step_profile.json").write_text(json.dumps(results, indent=2) + "\n")
        plot(results, args.output / "step_profile.png")


if __name__ == "__main__":
    main()
