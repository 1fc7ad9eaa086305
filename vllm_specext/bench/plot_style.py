"""What all pictures have in common: colours, signs, a panel for each temperature, and how unsure figures are drawn."""

from collections.abc import Callable, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from vllm_specext.bench.results import Row
from vllm_specext.bench.spread import WIDE, is_unsure
from vllm_specext.measure.plain import PLAIN, STOCK

COLORS = ("#1f77b4", "#ff7f0e", "#2ca02c", "#9467bd", "#8c564b", "#17becf", "#d62728", "#7f7f7f", "#bcbd22", "#e377c2")
MARKERS = "os^Dvp*XP<"
DPI = 150
NAMES = {PLAIN: "plain decoding", STOCK: f"{STOCK}, vLLM as it is"}
"""Plain decoding, in words."""
UNSURE = f"hollow, dashed: the rounds differ by\nmore than {WIDE:.0%} of the median, or are one"
ROW_HEIGHT = 0.3
"""Inches for a bar, or for a line of text."""


def by_temperature(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """A title and the rows for each temperature, from the lowest on; one without a title where there is one."""
    found = sorted({row.get("temperature", 0) for row in rows})
    if len(found) == 1:
        return [("", list(rows))]
    return [(f"temperature {one:g}", [row for row in rows if row["temperature"] == one]) for one in found]


def bar(color: str, row: Row) -> dict[str, Any]:
    """How a bar of ``row`` is drawn: filled, or hollow where its figure is unsure."""
    if is_unsure(row):
        return {"facecolor": "white", "edgecolor": color, "linestyle": "--", "linewidth": 1.2}
    return {"facecolor": color, "edgecolor": color, "linewidth": 1.2}


def line(number: int, is_hollow: bool) -> dict[str, Any]:
    """How the ``number``-th line is drawn: dashed with hollow signs where one of its figures is unsure."""
    style: dict[str, Any] = {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)]}
    return style | ({"linestyle": "--", "markerfacecolor": "white"} if is_hollow else {})


def unsure_handles(rows: Sequence[Row], unsure: Callable[[Row], bool] = is_unsure) -> list[Patch]:
    """An entry of a legend that says what hollow means, where anything is."""
    if not any(unsure(row) for row in rows):
        return []
    return [Patch(facecolor="white", edgecolor="black", linestyle="--", label=UNSURE)]


def lines_up(axes: Axes, names: Sequence[str]) -> None:
    """``names`` along a vertical axis, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
