"""Pictures of what is accepted: by depth and by task. None of these figures depends on the machine."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from vllm_specext.bench.plot_style import COLORS, MARKERS, ROW_HEIGHT, by_temperature
from vllm_specext.bench.results import Row, labels
from vllm_specext.measure.plain import PLAIN, STOCK

RATES = "spec_decode_per_position_acceptance_rates"
LENGTH = "spec_decode_acceptance_length"
LONG_NAMES = 5
"""Characters of a task's name from which on the names are written aslant."""


def by_depth(rows: Sequence[Row]) -> Figure:
    """A line for each method at the lowest concurrency, over all tasks; a panel for each temperature."""
    own = [row for row in rows if has_depths(row)]
    lowest = min(row["max_concurrency"] for row in own)
    own = [row for row in own if row["max_concurrency"] == lowest]
    panels = by_temperature(own)
    most = max(len(shown) for _, shown in panels)
    figure = Figure(figsize=(4 + 5 * len(panels), max(5, 1.5 + 0.25 * most * len(panels))), layout="constrained")
    (all_axes,) = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    names = list(dict.fromkeys(labels(own)))
    deepest = max(len(accepted(row)) for row in own)
    for axes, (title, shown) in zip(all_axes, panels, strict=True):
        for label, row in zip(labels(shown), shown, strict=True):
            _depth_line(axes, label, row, names.index(label))
        axes.set_xticks(range(1, deepest + 1, 1 + deepest // 16))
        axes.set_xlim(0.7, deepest + 0.3)
        axes.set_xlabel("depth: which drafted token in a row")
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.3)
        axes.legend(title="method: tokens per verification", loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2)
    all_axes[0].set_ylim(0, 102)
    all_axes[0].set_ylabel("verifications that accepted it, %")
    figure.suptitle(f"Acceptance by depth, {lowest} request{'s' if lowest > 1 else ''} at a time")
    return figure


def has_depths(row: Row) -> bool:
    """Whether there is a line to draw for ``row``: it is about all tasks, and something was accepted."""
    return row["task"] == "all" and bool(accepted(row))


def accepted(row: Row) -> list[float]:
    """The shares by depth, up to the last at which anything was accepted."""
    rates = list(row.get(RATES) or [])
    while rates and rates[-1] == 0:
        rates.pop()
    return rates


def _depth_line(axes: Axes, label: str, row: Row, number: int) -> None:
    rates = accepted(row)
    axes.plot(
        range(1, len(rates) + 1),
        [100 * rate for rate in rates],
        color=COLORS[number % len(COLORS)],
        marker=MARKERS[(number + number // len(COLORS)) % len(MARKERS)],
        label=f"{label}: {row[LENGTH]:.2f}",
    )


def by_task(rows: Sequence[Row]) -> Figure:
    """A table in colours: methods by tasks; one above the other for each temperature."""
    own = [row for row in rows if row["method"] not in (PLAIN, STOCK)]
    tasks = list(dict.fromkeys(row["task"] for row in own))
    panels = by_temperature(own)
    names = list(dict.fromkeys(labels(own)))
    figure = Figure(
        figsize=(3.5 + 0.75 * len(tasks), 2.2 + len(panels) * (0.5 + ROW_HEIGHT * len(names))), layout="constrained"
    )
    (*all_axes,) = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    most = max(row.get(LENGTH, 1.0) for row in own)
    for axes, (title, shown) in zip(all_axes, panels, strict=True):
        found = {(label, row["task"]): row.get(LENGTH, 1.0) for label, row in zip(labels(shown), shown, strict=True)}
        values = [[found.get((name, task), 1.0) for task in tasks] for name in names]
        axes.imshow(values, cmap="Blues", vmin=1, vmax=1.1 * most, aspect="auto")
        for line, of_name in enumerate(values):
            for column, value in enumerate(of_name):
                color = "white" if value > 0.45 + 0.65 * most else "black"
                axes.text(column, line, f"{value:.2f}", ha="center", va="center", fontsize="small", color=color)
        axes.set_yticks(range(len(names)), names)
        axes.set_title(title, fontsize="medium")
    aslant = max(map(len, tasks)) >= LONG_NAMES
    all_axes[-1].set_xticks(range(len(tasks)), tasks, rotation=40 if aslant else 0, ha="right" if aslant else "center")
    figure.suptitle("Tokens per verification, by task\n(plain decoding, or no draft at all: 1)")
    return figure
