"""Results as pictures that need no other explanation. Which ones there are follows from what was measured."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vllm_specext.bench.results import Results, Row, baseline, labels, temperature_suffixes
from vllm_specext.measure.plain import PLAIN, STOCK

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#17becf")
MARKERS = "os^Dvp*XP<"
DPI = 150
NAMES = {PLAIN: "plain decoding", STOCK: f"{STOCK}, vLLM as it is"}
"""Plain decoding, in words."""


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Write what there is to see to ``folder``; file names by what they show."""
    name, rows = results.name, results.rows
    wanted: list[tuple[str, str, Callable[[Sequence[Row]], Figure]]] = []
    if "request_rate" in rows[0]:
        wanted.append(("Latency by request rate", f"{name}-latency-by-request-rate.png", latency_by_rate))
    elif name == "latency":
        wanted.append(("Latency of one request at a time", "latency.png", latency_bars))
    if any(row["method"] != baseline(rows) and "speedup" in row for row in rows) and "request_rate" not in rows[0]:
        wanted.append(("Speed-up by concurrency", f"{name}-speedup-by-concurrency.png", speedup))
    if len({row["task"] for row in rows}) > 1:
        wanted.append(("Tokens per verification by task", f"{name}-by-task.png", by_task))
    if any(row.get("spec_decode_per_position_acceptance_rates") for row in rows) and "request_rate" not in rows[0]:
        wanted.append(("Acceptance by depth", f"{name}-by-depth.png", by_depth))
    if any("ratio_to_no_nodes" in row for row in rows):
        wanted.append(("Speed by nodes", f"{name}-by-nodes.png", by_nodes))
    for _, file, picture in wanted:
        picture(rows).savefig(folder / file, dpi=DPI)
    return {title: file for title, file, _ in wanted}


def speedup(rows: Sequence[Row]) -> Figure:
    """A bar for each method and concurrency, the spread over the rounds as a whisker."""
    base = baseline(rows)
    own = [row for row in rows if row["method"] != base]
    names = list(dict.fromkeys(labels(own, True)))
    at_once = sorted({row["max_concurrency"] for row in own})
    figure = Figure(figsize=(9, 1.6 + 0.3 * len(names) * (0.6 + len(at_once))), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(at_once)
    for number, concurrency in enumerate(at_once):
        shown = [(names.index(label), row) for label, row in zip(labels(own, True), own, strict=True)]
        shown = [(place, row) for place, row in shown if row["max_concurrency"] == concurrency]
        places = [place + height * (number - (len(at_once) - 1) / 2) for place, _ in shown]
        values = [row["speedup"] for _, row in shown]
        spread = [
            [row["speedup"] - row["speedup_lowest"] for _, row in shown],
            [row["speedup_highest"] - row["speedup"] for _, row in shown],
        ]
        color = COLORS[number % len(COLORS)]
        label = f"{concurrency} request{'s' if concurrency > 1 else ''}"
        axes.barh(places, values, 0.92 * height, xerr=spread, capsize=3, label=label, color=color)
        for place, value in zip(places, values, strict=True):
            axes.text(0.01, place, f" {value:.2f}", va="center", fontsize="small", color="white", weight="bold")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"speed relative to {NAMES[base]} (1: as fast; longer bars are faster)")
    axes.set_title(
        f"Speed-up over {NAMES[base]}, by requests at a time\nmedian of the rounds, whiskers: slowest and fastest"
    )
    axes.legend(title="at a time", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def by_nodes(rows: Sequence[Row]) -> Figure:
    """A picture for each method that drafts trees, in it a line for each concurrency."""
    own = [row for row in rows if "ratio_to_no_nodes" in row]
    named = [(f"{row['method']}{suffix}", row) for row, suffix in zip(own, temperature_suffixes(own), strict=True)]
    names = list(dict.fromkeys(name for name, _ in named))
    figure = Figure(figsize=(1.5 + 4.5 * len(names), 4), layout="constrained")
    (all_axes,) = figure.subplots(1, len(names), sharey=True, squeeze=False)
    for axes, name in zip(all_axes, names, strict=True):
        for concurrency in sorted({row["max_concurrency"] for row in own}):
            line = [row for own_name, row in named if (own_name, row["max_concurrency"]) == (name, concurrency)]
            places = [row["num_speculative_tokens"] for row in line]
            axes.plot(places, [row["ratio_to_no_nodes"] for row in line], marker="o", label=f"{concurrency}")
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set_title(name)
        axes.set_xlabel("nodes drafted per request")
    all_axes[0].set_ylabel("speed relative to no drafted nodes")
    all_axes[-1].legend(title="at a time")
    return figure


def by_depth(rows: Sequence[Row]) -> Figure:
    """A line for each method at the lowest concurrency, over all tasks."""
    own = [row for row in rows if row.get("spec_decode_per_position_acceptance_rates") and row["task"] == "all"]
    lowest = min(row["max_concurrency"] for row in own)
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    deepest = 0
    for number, (label, row) in enumerate(zip(labels(own, True), own, strict=True)):
        rates = row["spec_decode_per_position_acceptance_rates"]
        while rates and rates[-1] == 0:
            rates = rates[:-1]
        if row["max_concurrency"] != lowest or not rates:
            continue
        deepest = max(deepest, len(rates))
        tokens = row["spec_decode_acceptance_length"]
        axes.plot(
            range(1, len(rates) + 1),
            [100 * rate for rate in rates],
            marker=MARKERS[number % len(MARKERS)],
            label=f"{label}: {tokens:.2f}",
        )
    axes.set_xticks(range(1, deepest + 1))
    axes.set_ylim(0, 100)
    axes.set_xlabel("depth: which drafted token in a row")
    axes.set_ylabel("verifications that accepted it, %")
    axes.set_title(f"Acceptance by depth, {lowest} request{'s' if lowest > 1 else ''} at a time")
    axes.grid(alpha=0.3)
    axes.legend(title="method: tokens per verification", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


def by_task(rows: Sequence[Row]) -> Figure:
    """Groups of bars, one for each task."""
    own = [row for row in rows if row["method"] != PLAIN]
    names, tasks = list(dict.fromkeys(labels(own, True))), list(dict.fromkeys(row["task"] for row in own))
    figure = Figure(figsize=(9, 1.6 + 0.3 * len(names) * (0.6 + len(tasks))), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / len(tasks)
    for number, task in enumerate(tasks):
        shown = [(label, row) for label, row in zip(labels(own, True), own, strict=True) if row["task"] == task]
        places = [names.index(label) + height * (number - (len(tasks) - 1) / 2) for label, _ in shown]
        values = [row.get("spec_decode_acceptance_length", 1.0) for _, row in shown]
        bars = axes.barh(places, values, 0.92 * height, label=task, color=COLORS[number % len(COLORS)])
        axes.bar_label(bars, [f"{value:.2f}" for value in values], padding=3, fontsize="small")
    axes.axvline(1, color="black", linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("tokens per verification (plain decoding: 1)")
    axes.set_title("Tokens per verification, by task")
    axes.legend(title="task", loc="center left", bbox_to_anchor=(1, 0.5))
    return figure


LATENCIES = {"ttft": "time to first token, ms", "tpot": "time per further token, ms", "e2el": "whole answer, ms"}


def latency_by_rate(rows: Sequence[Row]) -> Figure:
    """Median of each latency; the 99th percentile of the whole answer is dashed."""
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    rates = sorted({float(row["request_rate"]) for row in rows})
    for axes, (key, meaning) in zip(figure.subplots(1, 3), LATENCIES.items(), strict=True):
        for number, name in enumerate(dict.fromkeys(labels(rows, True))):
            named = zip(labels(rows, True), rows, strict=True)
            own = sorted((row for each, row in named if each == name), key=lambda row: float(row["request_rate"]))
            places = [rates.index(float(row["request_rate"])) for row in own]
            style: dict[str, Any] = {"color": f"C{number}", "marker": MARKERS[number % len(MARKERS)]}
            axes.plot(places, [row[f"median_{key}_ms"] for row in own], label=name, **style)
            if key == "e2el":
                axes.plot(places, [row[f"p99_{key}_ms"] for row in own], linestyle="--", **style)
        _rate_axis(axes, rates)
        axes.set_title(f"{meaning}\nmedian{', dashed: 99th percentile' if key == 'e2el' else ''}", fontsize="medium")
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=6)
    return figure


def _rate_axis(axes: Axes, rates: Sequence[float]) -> None:
    axes.set_xticks(range(len(rates)), ["all at once" if rate == float("inf") else f"{rate:g}" for rate in rates])
    axes.set_xlabel("requests per second")
    axes.set_ylim(0, 1.08 * axes.dataLim.y1)
    axes.grid(alpha=0.3)


def latency_bars(rows: Sequence[Row]) -> Figure:
    figure = Figure(figsize=(13, 1.6 + 0.4 * len(rows)), layout="constrained")
    names = labels(rows, True)
    for axes, (key, meaning) in zip(figure.subplots(1, 3, sharey=True), LATENCIES.items(), strict=True):
        values = [row[f"median_{key}_ms"] for row in rows]
        bars = axes.barh(range(len(rows)), values, color=["grey" if row["method"] in NAMES else "C0" for row in rows])
        axes.bar_label(bars, [f"{value:.1f}" for value in values], padding=3, fontsize="small")
        axes.margins(x=0.15)
        axes.set_title(f"{meaning} (median, shorter is better)", fontsize="medium")
        axes.set_yticks(range(len(rows)), names)
    figure.axes[0].invert_yaxis()
    return figure
