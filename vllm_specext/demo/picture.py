"""The demonstration's rows as bars: tokens per verification and speed-up, on a terminal and as a PNG."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table

if TYPE_CHECKING:
    from vllm_specext.demo.run import Row

WIDTH = 22
"""Characters of the longest bar: with names, figures and gaps a line has less than 80."""
DPI = 150
COLORS = {"tokens per verification": "#1f77b4", "speed-up over plain decoding": "#ff7f0e"}
MEASURES: "dict[str, Callable[[Row], float]]" = {
    "tokens per verification": lambda row: row.tokens_per_verification,
    "speed-up over plain decoding": lambda row: row.speedup,
}


class Bars:
    """The rows as bars, for rich to print."""

    def __init__(self, rows: "Sequence[Row]") -> None:
        self.rows = rows

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        mark = "#" if options.ascii_only else "█"
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
        table.add_column("", no_wrap=True)
        for title in MEASURES:
            table.add_column(title, min_width=WIDTH + 5, no_wrap=True, style=COLORS[title])
        longest = {title: max(map(of, self.rows)) for title, of in MEASURES.items()}
        for row in self.rows:
            values = ((of(row), longest[title]) for title, of in MEASURES.items())
            table.add_row(row.method, *(f"{value:.2f} {mark * round(WIDTH * value / top)}" for value, top in values))
        yield table


def draw(rows: "Sequence[Row]", path: Path) -> None:
    """Write the picture to ``path``, a PNG; the first row is plain decoding's."""
    from matplotlib.figure import Figure

    from vllm_specext.measure.machine import device, machine

    loops = rows[0].looping
    figure = Figure(figsize=(10, 1.7 + 0.4 * len(rows)), layout="constrained")
    for axes, (title, of) in zip(figure.subplots(1, 2, sharey=True), MEASURES.items(), strict=True):
        values = [of(row) for row in rows]
        axes.barh(range(len(rows)), values, color=["grey", *[COLORS[title]] * (len(rows) - 1)])
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
