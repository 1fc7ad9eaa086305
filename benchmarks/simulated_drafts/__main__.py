"""The command line: the table and the picture of all machines, methods and loads."""

import argparse
import json
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import simulated_drafts
from benchmarks.simulated_drafts import depths, passes, traffic
from benchmarks.simulated_drafts.drafters import METHODS, Method
from benchmarks.simulated_drafts.machines import GPUS, HOST, TARGETS, Machine
from benchmarks.simulated_drafts.simulation import Simulation, fixed_outcomes
from vllm_specext.bench.plots import DPI, MARKERS
from vllm_specext.tree.draft_size import NOTHING

LOADS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
STEPS, SETTLED = 1500, 300
"""Steps of each load, and those of them that the choice has to find its way."""

Row = dict[str, Any]


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.simulated_drafts",
        description=simulated_drafts.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--output", type=Path, default=Path("benchmarks/results/simulated"), help="folder of the results"
    )
    parser.add_argument("--steps", type=int, default=STEPS, help=f"steps of each load ({STEPS})")
    options = parser.parse_args(arguments)
    rows = [
        row
        for gpu in GPUS
        for target in TARGETS
        for method in METHODS
        for row in measured(Machine(gpu, target), method, options.steps)
    ]
    options.output.mkdir(parents=True, exist_ok=True)
    (options.output / "drafts.json").write_text(json.dumps(rows, indent=0))
    (options.output / "drafts.md").write_text(table(rows))
    busy = traffic.measured()
    (options.output / "traffic.json").write_text(json.dumps(busy, indent=0))
    (options.output / "traffic.md").write_text(traffic.table(busy))
    by_depth = depths.measured()
    (options.output / "depths.json").write_text(json.dumps(by_depth, indent=0))
    (options.output / "depths.md").write_text(depths.table(by_depth))
    by_passes = passes.measured()
    (options.output / "passes.json").write_text(json.dumps(by_passes, indent=0))
    (options.output / "passes.md").write_text(passes.table(by_passes))
    picture(rows).savefig(options.output / "drafts.png", dpi=DPI)


def measured(machine: Machine, method: Method, steps: int) -> list[Row]:
    """A row for each load, one after the other in the same engine, as the load of a server grows."""
    cost = method.cost(machine)
    simulation = Simulation(method.drafts, cost, lambda step: LOADS[step // steps])
    outcome = simulation.chosen(steps * len(LOADS))
    rows = []
    for number, requests in enumerate(LOADS):
        simulation.load = lambda step, requests=requests: requests  # type: ignore[misc]
        plain = requests / (HOST + machine.target_pass(requests, 1))
        fixed = {size: outcome.speed(2) for size, outcome in fixed_outcomes(simulation, requests, 3)}
        best = max(fixed, key=lambda size: fixed[size])
        first = number * steps
        speed = outcome.speed(first + SETTLED, first + steps)
        last = outcome.drafted[first + SETTLED : first + steps]
        usual = max(set(last), key=last.count)
        rows.append(
            {
                "gpu": machine.gpu.name,
                "target": machine.target.name,
                "method": method.name,
                "requests": requests,
                "best_fixed": best.nodes,
                "best_depth": best.levels,
                "usual": usual.nodes,
                "usual_depth": usual.levels,
                "best_to_plain": fixed[best] / plain,
                "longest_to_plain": fixed[max(fixed)] / plain,
                "chosen_to_plain": speed / plain,
                "chosen_to_best": speed / fixed[best],
                "first_to_own_plain": outcome.speed(first, first + SETTLED) / fixed[NOTHING],
                "chosen_to_own_plain": speed / fixed[NOTHING],
            }
        )
    return rows


def table(rows: list[Row]) -> str:
    """A row for each method and target: the lowest and the mean of all loads and GPUs."""
    lines = [
        "| target | method | chosen to best fixed: mean, lowest | chosen to no drafts: lowest, highest | in the first "
        f"{SETTLED} steps: lowest | longest to no drafts: lowest |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for target in TARGETS:
        for method in METHODS:
            own = [row for row in rows if (row["target"], row["method"]) == (target.name, method.name)]
            best, plain, early = (
                [row[key] for row in own] for key in ("chosen_to_best", "chosen_to_own_plain", "first_to_own_plain")
            )
            longest = min(row["longest_to_plain"] for row in own)
            lines.append(
                f"| {target.name} | {method.name} | {sum(best) / len(best):.3f}, {min(best):.3f} "
                f"| {min(plain):.2f}, {max(plain):.2f} | {min(early):.2f} | {longest:.2f} |"
            )
    return "\n".join(lines) + "\n"


def picture(rows: list[Row]) -> Figure:
    """Speed relative to plain decoding by load: what is chosen, the best fixed number as a dotted line above it."""
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    grid = figure.subplots(len(TARGETS), len(GPUS), sharex=True, sharey="row")
    for axes_row, target in zip(grid, TARGETS, strict=True):
        for axes, gpu in zip(axes_row, GPUS, strict=True):
            for number, method in enumerate(METHODS):
                key = gpu.name, target.name, method.name
                own = [row for row in rows if (row["gpu"], row["target"], row["method"]) == key]
                style = {"color": f"C{number}", "marker": MARKERS[number], "markersize": 4}
                loads = [row["requests"] for row in own]
                axes.plot(loads, [row["chosen_to_plain"] for row in own], label=method.name, **style)
                best = [row["best_to_plain"] for row in own]
                axes.plot(loads, best, linestyle=":", color=style["color"], linewidth=1)
            axes.axhline(1, color="black", linewidth=0.8)
            axes.set_xscale("log", base=2)
            axes.set_xticks(LOADS, [str(load) for load in LOADS])
            axes.set_title(f"{gpu.name}{f' x {gpu.ranks_for_70b}' if target.name == '70B' else ''}, {target.name}")
            axes.grid(alpha=0.3)
        axes_row[0].set_ylabel("speed relative to plain decoding")
    for axes in grid[-1]:
        axes.set_xlabel("running requests")
    grid[0][0].legend(fontsize="small")
    figure.suptitle("Simulated: the number of drafted tokens that is chosen (solid), and the best fixed one (dotted)")
    return figure


if __name__ == "__main__":
    main()
