"""What it brings to choose how deep trees are, on an H200: what is chosen with and without."""

from dataclasses import replace
from statistics import fmean
from typing import Any

from benchmarks.simulated_drafts.drafters import METHODS, Method
from benchmarks.simulated_drafts.machines import GPUS, TARGETS, Machine
from benchmarks.simulated_drafts.simulation import Simulation, constant

LOADS = (1, 4, 8, 16, 32)
RATES = (0.35, 0.5, 0.65, 0.8)
"""Acceptance of a chain's first token; little, as of a drafter that was trained on other texts, to much."""
STEPS, SETTLED, SEEDS = 2000, 300, 3

Row = dict[str, Any]


def measured() -> list[Row]:
    gpu = next(gpu for gpu in GPUS if gpu.name == "H200")
    return [
        {"target": target.name, "method": method.name, "rate": rate, "requests": requests}
        | compared(Machine(gpu, target), method, rate, requests)
        for target in TARGETS
        for method in METHODS
        if method.drafts.any_depth
        for rate in RATES
        for requests in LOADS
    ]


def compared(machine: Machine, method: Method, rate: float, requests: int) -> Row:
    """Tokens per second where the depth is chosen too, as a multiple; and in the first steps of the load."""
    late, early = {}, {}
    for any_depth in (False, True):
        drafts = replace(method.drafts, acceptance=constant(rate), any_depth=any_depth)
        cost = replace(method, drafts=drafts).cost(machine)
        outcomes = [Simulation(drafts, cost, lambda step: requests, seed).chosen(STEPS) for seed in range(SEEDS)]
        late[any_depth] = fmean(outcome.speed(SETTLED) for outcome in outcomes)
        early[any_depth] = fmean(outcome.speed(0, SETTLED) for outcome in outcomes)
    return {"gain": late[True] / late[False], "first_gain": early[True] / early[False]}


def table(rows: list[Row]) -> str:
    """A row for each target, method and acceptance, with a column for each load."""
    heads = " | ".join(f"{load} request{'s' * (load > 1)}" for load in LOADS)
    lines = [f"| target | method | acceptance | {heads} |", "| --- | --- | --- |" + " --- |" * len(LOADS)]
    for key in dict.fromkeys((row["target"], row["method"], row["rate"]) for row in rows):
        own = [row for row in rows if (row["target"], row["method"], row["rate"]) == key]
        target, method, rate = key
        gains = " | ".join(f"{row['gain']:.2f}" for row in own)
        lines.append(f"| {target} | {method} | {rate} | {gains} |")
    return "\n".join(lines) + "\n"
