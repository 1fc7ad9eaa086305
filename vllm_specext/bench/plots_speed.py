"""Pictures of speed relative to plain decoding, and to the same engine without drafts."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from vllm_specext.bench.plot_style import (
    COLORS,
    NAMES,
    ROW_HEIGHT,
    bar,
    by_temperature,
    line,
    lines_up,
    unsure_handles,
)
from vllm_specext.bench.results import Row, baseline, labels
from vllm_specext.bench.spread import is_ratio_unsure


def speedup(rows: Sequence[Row]) -> Figure:
    """A bar for each method and concurrency, the spread over the rounds as a whisker; a panel for each temperature."""
    base = baseline(rows)
    own = [row for row in rows if row["method"] != base]
    names = list(dict.fromkeys(labels(own)))
    at_once = sorted({row["max_concurrency"] for row in own})
    panels = by_temperature(own)
    size = (4.5 + 5 * len(panels), 2 + ROW_HEIGHT * len(names) * (0.6 + len(at_once)))
    figure = Figure(figsize=size, layout="constrained")
    (all_axes,) = figure.subplots(1, len(panels), sharey=True, sharex=True, squeeze=False)
    for axes, (title, shown) in zip(all_axes, panels, strict=True):
        for number, concurrency in enumerate(at_once):
            of_load = [row for row in shown if row["max_concurrency"] == concurrency]
            offset = 0.8 / len(at_once) * (number - (len(at_once) - 1) / 2)
            for label, row in zip(labels(shown), shown, strict=True):
                if row in of_load:
                    _speedup_bar(
                        axes, names.index(label) + offset, 0.72 / len(at_once), COLORS[number % len(COLORS)], row
                    )
        axes.axvline(1, color="black", linewidth=1)
        axes.set_title(title, fontsize="medium")
    lines_up(all_axes[0], names)
    all_axes[0].set_xlim(0, 1.15 * max(row["speedup_highest"] for row in own))
    figure.supxlabel(f"speed relative to {NAMES[base]} (1: as fast; longer bars are faster)", fontsize="medium")
    figure.suptitle(
        f"Speed-up over {NAMES[base]}, by requests at a time\nmedian of the rounds, whiskers: slowest and fastest"
    )
    loads = [
        Patch(color=COLORS[number % len(COLORS)], label=f"{concurrency} request{'s' if concurrency > 1 else ''}")
        for number, concurrency in enumerate(at_once)
    ]
    figure.legend(handles=[*loads, *unsure_handles(own)], title="at a time", loc="outside right center")
    return figure


def _speedup_bar(axes: Axes, place: float, height: float, color: str, row: Row) -> None:
    spread = [[row["speedup"] - row["speedup_lowest"]], [row["speedup_highest"] - row["speedup"]]]
    axes.barh([place], [row["speedup"]], height, xerr=spread, capsize=3, ecolor="black", **bar(color, row))
    # After the whisker, which would cross it otherwise, and on white, because of the line at 1.
    axes.annotate(
        f"{row['speedup']:.2f}",
        (row["speedup_highest"], place),
        (5, 0),
        textcoords="offset points",
        va="center",
        fontsize="small",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )


def by_nodes(rows: Sequence[Row]) -> Figure:
    """A panel for each method that drafts trees and each temperature, in it a line for each concurrency."""
    own = [row for row in rows if "ratio_to_no_nodes" in row]
    panels = [
        (f"{name}\n{title}" if title else name, [row for row in of_temperature if row["method"] == name])
        for title, of_temperature in by_temperature(own)
        for name in dict.fromkeys(row["method"] for row in of_temperature)
    ]
    figure = Figure(figsize=(3 + 4 * len(panels), 4), layout="constrained")
    (all_axes,) = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    at_once = sorted({row["max_concurrency"] for row in own})
    for axes, (title, shown) in zip(all_axes, panels, strict=True):
        for number, concurrency in enumerate(at_once):
            of_load = [row for row in shown if row["max_concurrency"] == concurrency]
            places = [row["num_speculative_tokens"] for row in of_load]
            style = line(number, any(is_ratio_unsure(row) for row in of_load))
            axes.plot(places, [row["ratio_to_no_nodes"] for row in of_load], label=f"{concurrency}", **style)
        axes.axhline(1, color="grey", linewidth=0.8)
        axes.set_title(title, fontsize="medium")
        axes.set_xlabel("nodes drafted per request")
    all_axes[0].set_ylabel("speed relative to no drafted nodes")
    handles = [*all_axes[-1].get_legend_handles_labels()[0], *unsure_handles(own, is_ratio_unsure)]
    figure.legend(handles=handles, title="at a time", loc="outside right center")
    return figure
