"""How many nodes pay at which load: the measurement behind the default schedule in ``tree/budget.py``.

    python -m benchmarks.tree_budget --output benchmarks/results/cpu

One engine with trees of 59 nodes; before every run the scheduler is told another number of nodes, so that all sizes
are measured in turn on the same engine. No nodes means that the drafter still reads along, as it does under such a
schedule.
"""

import argparse
import json
import os
import random
import statistics
import time
from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
from rich.console import Console
from rich.progress import track
from rich.table import Table

from benchmarks.engines import ENGINE
from benchmarks.step_profile import tree
from vllm_specext.demo.loops import is_loop
from vllm_specext.demo.run import PROMPTS

BATCHES = (1, 2, 4, 8, 16)
SIZES = (0, 2, 4, 6, 8, 12, 16, 24, 40, 59)
TOKENS = 64


class Engine:
    def __init__(self) -> None:
        os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
        from vllm import LLM, SamplingParams

        self.llm = LLM(**ENGINE, speculative_config=tree(SIZES[-1], 10))
        self.params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
        self.prompts = self._prompts_that_do_not_loop()

    def _prompts_that_do_not_loop(self) -> list[str]:
        texts = [prompt["text"] for prompt in json.loads(PROMPTS.read_text(encoding="utf-8"))]
        answers = self.llm.generate(texts, self.params, use_tqdm=False)
        return [text for text, answer in zip(texts, answers, strict=True) if not is_loop(answer.outputs[0].token_ids)]

    def set_nodes(self, nodes: int) -> None:
        scheduler: Any = self.llm.llm_engine.engine_core.engine_core.scheduler
        scheduler.dynamic_sd_lookup[:] = [nodes] * len(scheduler.dynamic_sd_lookup)

    def tokens_per_second(self, nodes: int, prompts: list[str]) -> float:
        self.set_nodes(nodes)
        begun = time.perf_counter()
        self.llm.generate(prompts, self.params, use_tqdm=False)
        return TOKENS * len(prompts) / (time.perf_counter() - begun)


def measure(rounds: int) -> list[dict[str, Any]]:
    engine = Engine()
    chooser = random.Random(0)
    speeds: dict[tuple[int, int], list[float]] = {(batch, nodes): [] for batch in BATCHES for nodes in SIZES}
    for _ in track(range(rounds), description="rounds"):
        for batch in BATCHES:
            prompts = chooser.sample(engine.prompts, min(batch, len(engine.prompts)))
            for nodes in SIZES:
                speeds[batch, nodes].append(engine.tokens_per_second(nodes, prompts))
    rows = []
    for (batch, nodes), measured in speeds.items():
        ratios = [speed / without for speed, without in zip(measured, speeds[batch, 0], strict=True)]
        rows.append(
            {
                "requests": batch,
                "nodes": nodes,
                "tokens_per_second": round(statistics.median(measured), 1),
                "ratio_to_no_nodes": round(statistics.median(ratios), 3),
                "lowest_ratio": round(min(ratios), 3),
                "highest_ratio": round(max(ratios), 3),
            }
        )
    return rows


def table(rows: list[dict[str, Any]]) -> Table:
    shown = Table(title="speed relative to no drafted nodes, by running requests and nodes")
    shown.add_column("requests", justify="right")
    for nodes in SIZES:
        shown.add_column(str(nodes), justify="right")
    for batch in BATCHES:
        own = [row["ratio_to_no_nodes"] for row in rows if row["requests"] == batch]
        shown.add_row(str(batch), *(f"[bold]{one:.2f}[/bold]" if one == max(own) else f"{one:.2f}" for one in own))
    return shown


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    for batch in BATCHES:
        own = [row for row in rows if row["requests"] == batch]
        axes.plot(
            [row["nodes"] for row in own], [row["ratio_to_no_nodes"] for row in own], marker="o", label=f"{batch}"
        )
    axes.axhline(1, color="grey", linewidth=0.8)
    axes.set_xlabel("nodes drafted per request")
    axes.set_ylabel("speed relative to no drafted nodes")
    axes.legend(title="running requests")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder for tree_budget.json and .png")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rows = measure(args.rounds)
    args.output.mkdir(parents=True, exist_ok=True)
    (args.output / "tree_budget.json").write_text(json.dumps({"rounds": args.rounds, "rows": rows}, indent=2) + "\n")
    plot(rows, args.output / "tree_budget.png")
    Console().print(table(rows))


if __name__ == "__main__":
    main()
