"""Tokens per second and memory of plain decoding, GRIFFIN chains and GRIFFIN with its defaults, whose drafts follow the
load, at 1, 4 and 16 concurrent requests on the bundled models.

    python -m benchmarks.concurrency --output benchmarks/results/cpu

The servers are up at the same time and take turns on the same prompts, so that a machine that is slow for a minute is
slow for all. Writes ``concurrency.json`` and ``.png`` and prints a table: median tokens per second over the rounds with
their spread, speed-up, tokens and nodes per verification, and the resident memory of each server's processes.
"""

import argparse
import asyncio
import json
import platform
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from matplotlib import pyplot
from openai import AsyncOpenAI
from rich.console import Console
from rich.progress import track
from rich.table import Table

from vllm_specext.demo.run import MAX_TOKENS, PROMPTS, SETTLING_SECONDS, speculation
from vllm_specext.demo.server import GRIFFIN_CHAIN, Server

CONCURRENCIES = (1, 4, 16)
SERVERS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "griffin-chain": GRIFFIN_CHAIN,
    "griffin-by-load": {"method": "griffin", "model": GRIFFIN_CHAIN["model"]},
}


async def tokens_per_second(server: Server, prompts: list[str], concurrency: int) -> float:
    """All ``prompts`` once, ``concurrency`` at a time."""
    gate = asyncio.Semaphore(concurrency)

    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:

        async def ask(prompt: str) -> int:
            async with gate:
                answer = await client.completions.create(
                    model="bundled",
                    prompt=prompt,
                    max_tokens=MAX_TOKENS,
                    temperature=0,
                    extra_body={"ignore_eos": True},
                )
                assert answer.usage is not None
                return answer.usage.completion_tokens

        begun = time.perf_counter()
        counts = await asyncio.gather(*map(ask, prompts))
        return sum(counts) / (time.perf_counter() - begun)


def resident_mebibytes(server: Server) -> int:
    assert server.process is not None
    root = psutil.Process(server.process.pid)
    return sum(p.memory_info().rss for p in [root, *root.children(recursive=True)]) >> 20


def measure(servers: dict[str, Server], prompts: list[str], rounds: int) -> list[dict[str, Any]]:
    rows = []
    for concurrency in CONCURRENCIES:
        speeds: dict[str, list[float]] = {name: [] for name in servers}
        before = {name: speculation(server) for name, server in servers.items()}
        for _ in track(range(rounds), description=f"{concurrency} at a time"):
            for name, server in servers.items():
                time.sleep(SETTLING_SECONDS)
                speeds[name].append(asyncio.run(tokens_per_second(server, prompts, concurrency)))
        for name, server in servers.items():
            counted = speculation(server) - before[name]
            ratios = [ours / plain for ours, plain in zip(speeds[name], speeds["plain"], strict=True)]
            rows.append(
                {
                    "method": name,
                    "concurrency": concurrency,
                    "tokens_per_second": round(statistics.median(speeds[name]), 1),
                    "slowest": round(min(speeds[name]), 1),
                    "fastest": round(max(speeds[name]), 1),
                    "speedup": round(statistics.median(ratios), 3),
                    "tokens_per_verification": counted.acceptance_length,
                    "nodes_per_verification": counted.per_verification(counted.nodes),
                    "resident_mebibytes": resident_mebibytes(server),
                }
            )
    return rows


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Tokens per second by concurrency, one group of bars each, with the spread over the rounds."""
    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    width = 0.8 / len(SERVERS)
    for offset, name in enumerate(SERVERS):
        own = [row for row in rows if row["method"] == name]
        speeds = [row["tokens_per_second"] for row in own]
        spread = [
            [speed - row["slowest"] for speed, row in zip(speeds, own, strict=True)],
            [row["fastest"] - speed for speed, row in zip(speeds, own, strict=True)],
        ]
        places = [place + width * (offset - (len(SERVERS) - 1) / 2) for place in range(len(own))]
        bars = axes.bar(places, speeds, 0.95 * width, yerr=spread, capsize=4, label=name)
        axes.bar_label(bars, [f"{row['speedup']:.2f}x" for row in own], label_type="center", color="white")
    axes.set_xticks(range(len(CONCURRENCIES)), [str(c) for c in CONCURRENCIES])
    axes.set_xlabel("concurrent requests")
    axes.set_ylabel("tokens per second")
    axes.legend()
    figure.savefig(path, dpi=150)


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="tokens per second on the bundled models")
    shown.add_column("method", no_wrap=True)
    for column in ("at once", "tokens/s", "spread", "speed-up", "per verif.", "nodes", "MiB"):
        shown.add_column(column, justify="right", min_width=max(map(len, column.split())))
    for row in rows:
        shown.add_row(
            row["method"],
            str(row["concurrency"]),
            f"{row['tokens_per_second']:.0f}",
            f"{row['slowest']:.0f}-{row['fastest']:.0f}",
            f"{row['speedup']:.2f}",
            f"{row['tokens_per_verification']:.2f}",
            f"{row['nodes_per_verification']:.1f}",
            str(row["resident_mebibytes"]),
        )
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for concurrency.json")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    console = Console()
    prompts = [prompt["text"] for prompt in json.loads(PROMPTS.read_text(encoding="utf-8"))]
    with tempfile.TemporaryDirectory() as folder:
        servers = {name: Server(Path(folder) / f"{name}.log", speculative) for name, speculative in SERVERS.items()}
        try:
            for name, server in servers.items():
                with console.status(f"{name}: loading the server"):
                    server.start()
                asyncio.run(tokens_per_second(server, prompts[:2], 2))  # warm-up
            rows = measure(servers, prompts, args.rounds)
        finally:
            for server in servers.values():
                server.stop()
    args.output.mkdir(parents=True, exist_ok=True)
    machine = {
        "machine": platform.processor() or platform.machine(),
        "cores": psutil.cpu_count(),
        "rounds": args.rounds,
    }
    (args.output / "concurrency.json").write_text(json.dumps({**machine, "rows": rows}, indent=2) + "\n")
    plot(rows, args.output / "concurrency.png")
    console.print(table(rows))


if __name__ == "__main__":
    main()
