"""Tokens per verification of every row that has been run, as a picture."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from benchmarks.ablation import report
from benchmarks.ablation.report import Figures, verdict
from benchmarks.ablation.rows import ROWS
from benchmarks.ablation.runs import Runs

COLORS = {"griffin": "#c2570c", "eagle3": "#1f77b4"}


def of_runs(done: Runs) -> Figure:
    """Of the runs that there are, at least one."""
    run = next(iter(done.values()))
    steps, prompts = sum(run["steps"]), sum(run["prompts"].values())
    caption = f"bundled target, {steps} steps, greedy chains of 4 on {prompts} held-out prompts"
    return picture([one for row in ROWS if (one := report.figures(done, row)) is not None], caption)


def picture(found: Sequence[Figures], caption: str) -> Figure:
    """A point for each row with its 95% interval, a small mark for every seed, and the reference of each group as a
    line."""
    figure = Figure(figsize=(10, 1.6 + 0.42 * len(found)), layout="constrained")
    axes = figure.subplots()
    for place, one in enumerate(reversed(found)):
        color = COLORS[one.row.drafter]
        spread = [[one.value - one.low], [one.high - one.value]]
        axes.errorbar([one.value], [place], xerr=spread, fmt="o", color=color, capsize=3)
        axes.plot(one.of_seeds, [place] * len(one.of_seeds), "|", color="black", markersize=9)
        said = "reference" if one.row.reference is None else ""
        if one.difference is not None:
            said = f"{one.difference.value:+.2f}, {verdict(one)}"
        axes.annotate(said, (1.01, place), xycoords=("axes fraction", "data"), va="center", size="small")
        if one.row.reference is None:
            axes.axvline(one.value, color=color, linewidth=1, linestyle=":")
    axes.set_yticks(range(len(found)), [one.row.label for one in reversed(found)])
    axes.set_ylim(-0.6, len(found) - 0.4)
    axes.grid(axis="x", alpha=0.3)
    axes.set_xlabel("tokens per verification (point: all seeds, with the 95% interval; black marks: single seeds)")
    axes.set_title(f"Drafters that were trained alike but for one thing\n({caption})")
    return figure
