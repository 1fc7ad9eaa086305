"""Pictures of how long a request waits."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vllm_specext.bench.plot_style import NAMES, ROW_HEIGHT, bar, line, lines_up, unsure_handles
from vllm_specext.bench.results import Row, labels
from vllm_specext.bench.spread import is_unsure

LATENCIES = {"ttft": "time to first token, ms", "tpot": "time per further token, ms", "e2el": "whole answer, ms"}


def latency_by_rate(rows: Sequence[Row]) -> Figure:
    """Median of each latency; the 99th percentile of the whole answer is dotted."""
    figure = Figure(figsize=(13, 5), layout="constrained")
    rates = sorted({float(row["request_rate"]) for row in rows})
    named = list(zip(labels(rows, True), rows, strict=True))
    for axes, (key, meaning) in zip(figure.subplots(1, 3), LATENCIES.items(), strict=True):
        for number, name in enumerate(dict.fromkeys(name for name, _ in named)):
            own = sorted((row for each, row in named if each == name), key=lambda row: float(row["request_rate"]))
            places = [rates.index(float(row["request_rate"])) for row in own]
            style = line(number, any(is_unsure(row) for row in own))
            axes.plot(places, [row[f"median_{key}_ms"] for row in own], label=name, **style)
            if key == "e2el":
                axes.plot(places, [row[f"p99_{key}_ms"] for row in own], **style | {"linestyle": ":"})
        _rate_axis(axes, rates)
        axes.set_title(f"{meaning}\nmedian{', dotted: 99th percentile' if key == 'e2el' else ''}", fontsize="medium")
    handles = [*figure.axes[0].get_legend_handles_labels()[0], *unsure_handles(rows)]
    figure.legend(handles=handles, loc="outside lower center", ncols=5)
    return figure


def _rate_axis(axes: Axes, rates: Sequence[float]) -> None:
    axes.set_xticks(range(len(rates)), ["all at once" if rate == float("inf") else f"{rate:g}" for rate in rates])
    axes.set_xlabel("requests per second")
    axes.set_ylim(0, 1.08 * axes.dataLim.y1)
    axes.grid(alpha=0.3)


def latency_bars(rows: Sequence[Row]) -> Figure:
    """A bar for each method and temperature."""
    figure = Figure(figsize=(13, 2 + 1.3 * ROW_HEIGHT * len(rows)), layout="constrained")
    names = labels(rows, True)
    for axes, (key, meaning) in zip(figure.subplots(1, 3, sharey=True), LATENCIES.items(), strict=True):
        for place, row in enumerate(rows):
            color = "grey" if row["method"] in NAMES else "C0"
            drawn = axes.barh([place], [row[f"median_{key}_ms"]], **bar(color, row))
            axes.bar_label(drawn, [f"{row[f'median_{key}_ms']:.1f}"], padding=3, fontsize="small")
        axes.margins(x=0.15)
        axes.set_title(f"{meaning}\n(median, shorter is better)", fontsize="medium")
    lines_up(figure.axes[0], names)
    if handles := unsure_handles(rows):
        figure.legend(handles=handles, loc="outside lower center")
    return figure
