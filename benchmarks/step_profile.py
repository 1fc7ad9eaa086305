"""Where a step's time goes on the host, by part, without drafts, with chains and with trees.

    python -m benchmarks.step_profile --output benchmarks/results/cpu

Every configuration runs in a process of its own, one engine each, and generates greedily for 1 and for 16 requests at
once. The parts are timed by wrapping their functions; a part's time is its own, without that of parts inside it. On a
CPU that is all there is; on a GPU it is the time of launching, which must stay below the time of computing.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as pyplot
from rich.console import Console
from rich.progress import track
from rich.table import Table

from vllm_specext.demo.server import GRIFFIN_CHAIN, MODELS, TARGET

BATCHES = (1, 16)
TOKENS = 64
ENGINE: dict[str, Any] = {
    "model": str(TARGET),
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 512,
    "max_num_seqs": BATCHES[-1],
    "kv_cache_memory_bytes": 512 << 20,
    "enable_prefix_caching": False,
}


def tree(nodes: int, top_k: int) -> dict[str, Any]:
    drafter = {"method": "griffin", "model": str(MODELS / "griffin"), "num_speculative_tokens": nodes}
    return drafter | {"tree_top_k": top_k, "num_speculative_tokens_per_batch_size": [[1, BATCHES[-1], nodes]]}


CONFIGURATIONS: dict[str, dict[str, Any] | None] = {
    "plain": None,
    "chain of 4": GRIFFIN_CHAIN,
    "tree of 24": tree(24, 4),
    "tree of 59": tree(59, 10),
}
RUNNER = "vllm.v1.worker.gpu.model_runner:GPUModelRunner"
PARTS: dict[str, tuple[str, ...]] = {
    "scheduler": (
        "vllm.v1.core.sched.scheduler:Scheduler.schedule",
        "vllm.v1.core.sched.scheduler:Scheduler.update_from_output",
    ),
    "inputs": (f"{RUNNER}.prepare_inputs", f"{RUNNER}.prepare_attn"),
    "tree layout": ("vllm_specext.engine.trees:TreeStates.begin", "vllm_specext.engine.trees:TreeStates.attach"),
    "target": (f"{RUNNER}.execute_model",),
    "tree attention": ("vllm_specext.engine.attention:tree_attention",),
    "sampling and walk": (f"{RUNNER}.sample",),
    "KV compaction": ("vllm_specext.engine.trees:TreeStates.accept",),
    "drafter, first pass": (
        "vllm.v1.worker.gpu.spec_decode.target_dependent_ar.speculator:TargetDependentARSpeculator.propose",
        "vllm_specext.engine.tree_speculator:TreeSpeculator._read_paths",
    ),
    "drafter, levels": ("vllm_specext.engine.tree_growth:TreeGrower.grow",),
    "drafter, other": ("vllm_specext.engine.tree_speculator:TreeSpeculator.propose",),
    "expansion": (
        "vllm_specext.engine.tree_growth:best_tokens",
        "vllm_specext.tree.expansion:Expansion.grow",
        "vllm_specext.tree.expansion:Expansion.tree",
        "vllm_specext.engine.trees:TreeStates.write",
    ),
}


class Stopwatch:
    """Own time of wrapped functions, in seconds by part."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self._inner: list[float] = []

    def wrap(self, part: str, path: str) -> None:
        module, _, qualified = path.partition(":")
        owner: Any = importlib.import_module(module)
        *outer, name = qualified.split(".")
        for attribute in outer:
            owner = getattr(owner, attribute)
        setattr(owner, name, self._timed(part, getattr(owner, name)))

    def _timed(self, part: str, function: Callable) -> Callable:
        def timed(*args: Any, **kwargs: Any) -> Any:
            self._inner.append(0.0)
            begun = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                took = time.perf_counter() - begun
                self.seconds[part] += took - self._inner.pop()
                self.calls[part] += 1
                if self._inner:
                    self._inner[-1] += took

        return timed


def profile(name: str) -> dict[str, Any]:
    """Milliseconds per step and part, and tokens per step and request, by batch size."""
    from vllm import LLM, SamplingParams

    speculative = CONFIGURATIONS[name]
    stopwatch = Stopwatch()
    llm = LLM(**ENGINE, speculative_config=speculative)
    for part, paths in PARTS.items():
        for path in paths:
            stopwatch.wrap(part, path)
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    found: dict[str, Any] = {}
    for batch in BATCHES:
        prompts: Any = [{"prompt_token_ids": [1 + request, *range(40, 140)]} for request in range(batch)]
        llm.generate(prompts, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True), use_tqdm=False)
        stopwatch.seconds.clear()
        stopwatch.calls.clear()
        begun = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        took = time.perf_counter() - begun
        steps = stopwatch.calls["target"]
        parts = {part: 1000 * stopwatch.seconds[part] / steps for part in PARTS}
        parts["engine"] = 1000 * took / steps - sum(parts.values())
        found[str(batch)] = {"steps": steps, "tokens_per_step": TOKENS / steps, "milliseconds": parts}
    return found


def run(names: list[str]) -> dict[str, Any]:
    """Each configuration in its own process: an engine does not leave one as it was."""
    environment = os.environ | {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_USE_V2_MODEL_RUNNER": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "HF_HUB_OFFLINE": "1",
    }
    results = {}
    for name in track(names, description="profiling"):
        command = [sys.executable, "-m", "benchmarks.step_profile", "--one", name]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{name}: the engine ended.\n{done.stderr[-3000:]}")
        results[name] = json.loads(done.stdout.splitlines()[-1])
    return results


def table(results: dict[str, Any], batch: int) -> Table:
    shown = Table(title=f"milliseconds per step, {batch} request{'s' if batch > 1 else ''} at once")
    shown.add_column("part")
    for name in results:
        shown.add_column(name, justify="right")
    own = [result[str(batch)] for result in results.values()]
    for part in (*PARTS, "engine"):
        shown.add_row(part, *(f"{one['milliseconds'][part]:.2f}" for one in own))
    shown.add_section()
    shown.add_row("step", *(f"{sum(one['milliseconds'].values()):.2f}" for one in own))
    shown.add_row("tokens per step and request", *(f"{one['tokens_per_step']:.2f}" for one in own))
    return shown


def plot(results: dict[str, Any], path: Path) -> None:
    """A stacked bar per configuration and batch size."""
    figure, axes = pyplot.subplots(1, len(BATCHES), figsize=(10, 4.5), layout="constrained")
    colours = pyplot.get_cmap("tab20").colors  # type: ignore[attr-defined]
    for axis, batch in zip(axes, BATCHES, strict=True):
        for place, result in enumerate(results.values()):
            bottom = 0.0
            for colour, (part, value) in zip(colours, result[str(batch)]["milliseconds"].items(), strict=False):
                axis.bar(place, value, bottom=bottom, color=colour, label=part if place == 0 else None)
                bottom += value
        axis.set_xticks(range(len(results)), list(results))
        axis.set_title(f"{batch} at once")
    axes[0].set_ylabel("milliseconds per step")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right center")
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, help="folder for step_profile.json and .png")
    parser.add_argument("--one", choices=list(CONFIGURATIONS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(profile(args.one)))
        return
    results = run(list(CONFIGURATIONS))
    console = Console()
    for batch in BATCHES:
        console.print(table(results, batch))
    if args.output:
        args.output.mkdir(parents=True, exist_ok=True)
        (args.output / "step_profile.json").write_text(json.dumps(results, indent=2) + "\n")
        plot(results, args.output / "step_profile.png")


if __name__ == "__main__":
    main()
