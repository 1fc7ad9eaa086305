"""What it brings to choose how many passes a PARD drafter takes for a tree, on an H200: up to three, and one alone.

Drafts bring the tokens per verification that ``results/cpu/pard_trees.json`` has by passes and nodes, with lines
between its points over the logarithm of the nodes. The drafters are of the size of those that AMD has released.
"""

import json
from dataclasses import dataclass
from functools import cache, partial
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.simulated_drafts.drafters import Method
from benchmarks.simulated_drafts.machines import GPUS, TARGETS, Machine
from benchmarks.simulated_drafts.simulation import Drafts, Simulation, constant, expected, fixed_outcomes
from vllm_specext.tree.budget import TreeShape
from vllm_specext.tree.draft_size import DraftSize

MEASURED = Path(__file__).parents[1] / "results/cpu/pard_trees.json"
DEPTH, PASSES = 6, 3
TREES = {most: TreeShape(59, DEPTH, 10, ends=tuple(range(DEPTH - most + 1, DEPTH))) for most in (1, PASSES)}
"""By the most passes. The first gives the first levels, and every further one adds a level."""
DRAFTERS = {"0.6B": (0.6e9, 28), "1B": (1.2e9, 16)}
"""Weights and layers: of Qwen3-0.6B and Llama-3.2-1B."""
LOADS = (1, 2, 4, 8, 16, 32)
STEPS, SETTLED, SEEDS = 2000, 300, 3

Row = dict[str, Any]


def passes_of(size: DraftSize, most: int) -> int:
    """The passes in which a draft of a ``size`` is made where there are at ``most`` so many; chains take one."""
    return 1 if size.nodes <= DEPTH else max(1, size.levels - (DEPTH - most))


@cache
def measured_tokens() -> dict[int, dict[int, float]]:
    """Tokens per verification by passes and nodes, of trees of six levels."""
    found: dict[int, dict[int, float]] = {}
    for row in json.loads(MEASURED.read_text())["rows"]:
        if row["method"] == "pard-tree" and row["depth"] == DEPTH:
            found.setdefault(row["passes"], {})[row["nodes"]] = row["tokens_per_verification"]
    return found


def tokens_of(size: DraftSize, most: int) -> float:
    known = {0: 1.0} | measured_tokens()[passes_of(size, most)]
    below = max(nodes for nodes in known if nodes <= size.nodes)
    above = min(nodes for nodes in known if nodes >= size.nodes)
    share = 0.0 if above == below else log((1 + size.nodes) / (1 + below)) / log((1 + above) / (1 + below))
    return known[below] + share * (known[above] - known[below])


@dataclass(frozen=True)
class Informed(Drafts):
    passes: int = PASSES
    """The most."""

    def chances(self, size: DraftSize, step: int) -> list[float]:
        """The same on each level, so that they bring what was measured."""
        wanted, low, high = tokens_of(size, self.passes) - 1, 0.0, 1.0
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if expected([middle] * size.levels) < wanted else (low, middle)
        return [low] * size.levels


def drafting(weights: float, layers: int, most: int, machine: Machine, requests: int, size: DraftSize) -> float:
    """Seconds of at ``most`` so many passes. The first reads the accepted path, too; the others read all nodes."""
    if not size.levels:
        return machine.seconds(weights, layers, requests)
    first = machine.seconds(weights, layers, requests * 2 * DEPTH)
    return first + (passes_of(size, most) - 1) * machine.seconds(weights, layers, requests * size.nodes)


def measured() -> list[Row]:
    gpu = next(gpu for gpu in GPUS if gpu.name == "H200")
    return [
        {"target": target.name, "drafter": name, "requests": requests} | compared(Machine(gpu, target), sizes, requests)
        for target in TARGETS
        for name, sizes in DRAFTERS.items()
        for requests in LOADS
    ]


def compared(machine: Machine, sizes: tuple[float, int], requests: int) -> Row:
    """What is chosen of up to three passes: how fast it is beside what is chosen of one, and beside the best."""
    speeds, usual = {}, []
    for most, tree in TREES.items():
        drafts = Informed(tree.nodes, constant(0.0), tree, any_depth=True, passes=most)
        cost = Method("PARD", drafts, partial(drafting, *sizes, most)).cost(machine)
        simulations = [Simulation(drafts, cost, lambda step: requests, seed) for seed in range(SEEDS)]
        outcomes = [simulation.chosen(STEPS) for simulation in simulations]
        speeds[most] = fmean(outcome.speed(SETTLED) for outcome in outcomes)
        usual = [passes_of(outcome.usual, most) for outcome in outcomes]
    best = max(fixed.speed(2) for _, fixed in fixed_outcomes(simulations[0], requests, 3))
    return {
        "gain": speeds[PASSES] / speeds[1],
        "chosen_to_best": speeds[PASSES] / best,
        "passes": max(set(usual), key=usual.count),
    }


def table(rows: list[Row]) -> str:
    """A row for each target and drafter, with a column for each load."""
    heads = " | ".join(f"{load} request{'s' * (load > 1)}" for load in LOADS)
    lines = [f"| target | drafter | {heads} |", "| --- | --- |" + " --- |" * len(LOADS)]
    for key in dict.fromkeys((row["target"], row["drafter"]) for row in rows):
        own = [row for row in rows if (row["target"], row["drafter"]) == key]
        cells = " | ".join(f"{row['gain']:.2f} ({row['passes']})" for row in own)
        lines.append(f"| {key[0]} | {key[1]} | {cells} |")
    return "\n".join(lines) + "\n"
