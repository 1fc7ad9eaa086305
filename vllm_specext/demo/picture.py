"""The demonstration's rows as bars: tokens per verification and speed-up, on a terminal and as a PNG."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

from vllm_specext.measure.plain import PLAIN, STOCK

if TYPE_CHECKING:
    from vllm_specext.demo.run import Row

WIDTH = 22
"""Characters of the longest bar: with names, figures and gaps a line has less than 80."""
DPI = 150
COLORS = ("#1f77b4", "#ff7f0e")
NAMES = {PLAIN: "plain decoding", STOCK: STOCK}
"""Rows without drafts, and what a title calls them."""


def measures(rows: "Sequence[Row]") -> "dict[str, Callable[[Row], float]]":
    """What is shown of a row, by title; the first row is what speed is relative to."""
    return {
        "tokens per verification": lambda row: row.tokens_per_verification,
        f"speed-up over {NAMES[rows[0].method]}": lambda row: row.speedup,
    }


class Bars:
    """The rows as bars, for rich to print."""

    def __init__(self, rows: "Sequence[Row]") -> None:
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        mark = "#" if options.ascii_only else "█"
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("", no_wrap=True)
        shown = measures(self.rows)
        for title, color in zip(shown, COLORS, strict=True):
            table.add_column(title, min_width=WIDTH + 5, no_wrap=True, style=color)
        longest = {title: max(map(of, self.rows)) for title, of in shown.items()}
        for row in self.rows:
            values = ((of(row), longest[title]) for title, of in shown.items())
            table.add_row(row.method, *(f"{value:.2f} {mark * round(WIDTH * value / top)}" for value, top in values))
        yield table


def draw(rows: "Sequence[Row]", path: Path) -> None:
    """Write the picture to ``path``, a PNG; the first row is what speed is relative to."""
    from matplotlib.figure import Figure

    from vllm_specext.measure.machine import device, machine

    loops = rows[0].looping
    figure = Figure(figsize=(10, 1.7 + 0.4 * len(rows)), layout="constrained")
    shown = measures(rows).items()
    for axes, (title, of), color in zip(figure.subplots(1, 2, sharey=True), shown, COLORS, strict=True):
        values = [of(row) for row in rows]
        axes.barh(range(len(rows)), values, color=["grey" if row.method in NAMES else color for row in rows])
        for place, value in enumerate(values):
            axes.text(0, place, f"  {value:.2f}", va="center", color="white", weight="bold")
        axes.axvline(1, color="black", linewidth=1)
        axes.set_title(title, fontsize="medium")
    left, right = figure.axes
    left.set_yticks(range(len(rows)), [row.method + ("" if row.identical else "\nDIFFERENT TOKENS") for row in rows])
    left.invert_yaxis()
    left.set_xlabel("plain decoding: 1" + (f"; without {loops} prompts that end in a loop" if loops else ""))
    right.set_xlabel("1: as fast; longer bars are faster")
    figure.suptitle(f"The same {rows[0].requests} prompts, one at a time, greedy ({machine()}, {device()})")
    figure.savefig(path, dpi=DPI)
