"""Soak test: a server with drafts under mixed load, with clients that go away, messages that are wrong and a cache that
is too small, and at the end with one of its processes killed.

    python -m benchmarks.soak --minutes 60 --output benchmarks/results/cpu/soak --method griffin-tree

Every finished answer must have the token ids of plain decoding, which a server without drafts has given before; where
drafts are drawn at random (SLRS), every greedy one. Wrong messages must be refused with the right status, nothing may
be left running, memory must not grow, and no client may wait for an answer that will never come. Writes ``METHOD.json``
and ``METHOD.png``; ends with status 1 and says why if anything of this fails.
"""

import argparse
import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from benchmarks.soak import death, verdict
from benchmarks.soak.clients import Load, Outcome, answers
from benchmarks.soak.plot import plot
from benchmarks.soak.watch import Watch, memory_by_quarter, speed_by_quarter
from benchmarks.soak.workload import Request, Workload, workload
from vllm_specext.bench.configurations import Configuration
from vllm_specext.measure.bundled import CONFIGURATIONS
from vllm_specext.measure.server import Server, speculation

CLIENTS = 12
BLOCKS = 56
"""Blocks of 32 tokens: one request of full length fits, twelve of mixed lengths do not."""
ARGUMENTS = ("--block-size=32", f"--num-gpu-blocks-override={BLOCKS}", "--max-num-batched-tokens=256")
METHODS: dict[str, dict[str, Any] | None] = {"plain": None, **dict(CONFIGURATIONS)}
"""Plain decoding to see what of the memory is vLLM's own."""
MOST_REQUESTS = 96
"""Different ones, asked again and again."""
SETTLING_SECONDS = 30.0
STREAMS = 6
"""Open when a process is killed."""


def bar(console: Console) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[now]}"))
    return Progress(*columns, console=console)


def plain_answers(folder: Path, asked: Sequence[Request], progress: Progress) -> list[list[int]]:
    task = progress.add_task("plain decoding", total=len(asked), now="loading the server")
    with Server(folder / "plain.log").start() as server:
        progress.update(task, now="")
        return asyncio.run(answers(server.url, asked, CLIENTS, lambda: progress.advance(task)))


def drafting_server(log: Path, speculative: dict[str, Any] | None) -> Server:
    """Started as a user's is: how it ends is watched too."""
    return Server(log, speculative, arguments=ARGUMENTS, forked=False).start()


async def soak(server: Server, load: Load, seconds: float, progress: Progress) -> Watch:
    """Samples under load, and last one of the server at rest."""
    watch = Watch(server)
    task = progress.add_task("load", total=seconds, now="")

    async def show() -> None:
        while True:
            await asyncio.sleep(1)
            done = load.outcome.counts.total() + load.outcome.refused.total()
            wrong = len(load.outcome.differing) + len(load.outcome.unexpected)
            progress.update(task, advance=1, now=f"{done} requests, {wrong} wrong")

    around = [asyncio.create_task(watch.run()), asyncio.create_task(show())]
    try:
        await load.run(CLIENTS, seconds)
    finally:
        for each in around:
            each.cancel()
        await asyncio.gather(*around, return_exceptions=True)
    watch.samples.append(await watch.settle(SETTLING_SECONDS))
    return watch


async def alone(server: Server, load: Load) -> list[dict[str, Any]]:
    """Differing requests once more, each on its own, with drafts and without."""
    told = []
    for index in sorted(set(load.outcome.differing)):
        request, known = load.requests[index], load.known[index]
        undrafted = request | {"vllm_xargs": {"speculation": False}}
        again = await answers(server.url, [request, undrafted], 1, lambda: None)
        names = ("alone with drafts", "alone without drafts")
        told.append({"request": request} | {name: got == known for name, got in zip(names, again, strict=True)})
    return told


def kill_one(server: Server, name: str, asked: Workload, known: Sequence[list[int]]) -> dict[str, Any]:
    """Kill a process while the requests that take longest are under way."""
    compared = (index for index, is_compared in enumerate(asked.compared) if is_compared)
    longest = sorted(compared, key=lambda index: -len(known[index]))[:STREAMS]
    return asyncio.run(death.kill(server, name, [asked.requests[i] for i in longest], [known[i] for i in longest]))


def figures(outcome: Outcome, watch: Watch) -> dict[str, Any]:
    under_load, afterwards = watch.samples[:-1], watch.samples[-1]
    memory = memory_by_quarter(under_load)
    return {
        "requests": dict(outcome.counts),
        "refused": dict(outcome.refused),
        "compared_tokens": outcome.tokens,
        "uncompared": outcome.uncompared,
        "differing": outcome.differing,
        "unexpected": outcome.unexpected,
        "preemptions": afterwards.preemptions,
        "highest_cache_usage": max(sample.cache_usage for sample in under_load),
        "memory_at_start": under_load[0].resident_mebibytes,
        "memory_at_end": afterwards.resident_mebibytes,
        "memory_by_quarter": memory,
        "tokens_per_second_by_quarter": speed_by_quarter(under_load),
        "memory_growth": round(memory[3] / memory[1] - 1, 4) if memory[1] else 0.0,
        "afterwards": asdict(afterwards),
    }


def run(method: str, minutes: float, folder: Path, console: Console) -> dict[str, Any]:
    speculative = METHODS[method]
    drawn = not Configuration(method, speculative).keeps_samples
    asked = workload(min(MOST_REQUESTS, 24 + int(8 * minutes)), drawn=drawn)
    with bar(console) as progress:
        known = plain_answers(folder, asked.requests, progress)
        deaths = []
        with drafting_server(folder / "drafts.log", speculative) as server:
            load = Load(server.url, asked, known)
            watch = asyncio.run(soak(server, load, 60 * minutes, progress))
            counted = speculation(server)
            told = asyncio.run(alone(server, load))
            deaths.append(kill_one(server, "Worker", asked, known))
        with drafting_server(folder / "second.log", speculative) as server:
            deaths.append(kill_one(server, "EngineCore", asked, known))
    return {
        "method": method,
        "minutes": minutes,
        "clients": CLIENTS,
        "cores": psutil.cpu_count(),
        **figures(load.outcome, watch),
        "verifications": counted.verifications,
        "tokens_per_verification": counted.acceptance_length,
        "differing_alone": told,
        "deaths": deaths,
        "samples": [asdict(sample) for sample in watch.samples],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for METHOD.json and METHOD.png")
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--method", choices=list(METHODS), default="griffin-tree")
    args = parser.parse_args()
    console = Console()
    # Servers that follow each other must not be bound to cores that other work has.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    # The plain server runs on the runner that our methods use, whose seeded noise is the same.
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1"
    with tempfile.TemporaryDirectory(prefix="vllm-specext-soak-") as folder:
        result = run(args.method, args.minutes, Path(folder), console)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / f"{args.method}.json").write_text(json.dumps(result, indent=1) + "\n")
    plot(result, args.output / f"{args.method}.png")
    console.print(verdict.table(result))
    found = verdict.problems(result)
    for problem in found:
        console.print(f"problem: {problem}", style="red", markup=False)
    raise SystemExit(1 if found else 0)


if __name__ == "__main__":
    main()
