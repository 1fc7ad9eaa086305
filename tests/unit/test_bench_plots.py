"""Pictures whose labels can be read: none covers another, none reaches over the edge, whatever is measured."""

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text

from vllm_specext.bench.configurations import NGRAM, Configuration
from vllm_specext.bench.plots_acceptance import by_depth, by_task
from vllm_specext.bench.plots_latency import latency_bars, latency_by_rate
from vllm_specext.bench.plots_speed import by_nodes, speedup
from vllm_specext.bench.results import Row, described
from vllm_specext.measure.bundled import GRIFFIN_TREE
from vllm_specext.measure.sampling import Sampling

METHODS = ("plain-stock", "plain", "ngram", "suffix", "eagle3", "eagle3-tree", "draft-model-tree", "griffin-tree")
TASKS = ("coding", "humanities", "multilingual", "reasoning", "roleplay", "summarization", "writing", "all")
SLACK = 1.0
"""Pixels that boxes may share: they are rounded."""


def texts(figure: Figure) -> list[tuple[str, Any]]:
    """Every text that is seen, with its box in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    found = [*figure.texts, *(text for legend in figure.legends for text in of_legend(legend))]
    for axes in figure.axes:
        found += [axes.title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        found += of_legend(legend) if (legend := axes.get_legend()) else []
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            # A tick outside the limits is there, and not drawn; so are the labels of a shared axis.
            if axis.get_tick_params()[f"label{'bottom' if axis is axes.xaxis else 'left'}"]:
                found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    shown = [one for one in found if one.get_visible() and one.get_text().strip()]
    return [(one.get_text(), one.get_window_extent(canvas.get_renderer())) for one in shown]


def of_legend(legend: Legend) -> list[Text]:
    return [legend.get_title(), *legend.get_texts()]


def covered(figure: Figure) -> list[tuple[str, str]]:
    """Pairs of texts of which one covers the other, and texts that reach over the figure's edge."""
    shown = texts(figure)
    pairs = [
        (one, other)
        for (one, a), (other, b) in combinations(shown, 2)
        if min(a.x1, b.x1) - max(a.x0, b.x0) > SLACK and min(a.y1, b.y1) - max(a.y0, b.y0) > SLACK
    ]
    width, height = figure.canvas.get_width_height()
    outside = [
        (text, "the edge")
        for text, box in shown
        if box.x0 < -SLACK or box.y0 < -SLACK or box.x1 > width + SLACK or box.y1 > height + SLACK
    ]
    return pairs + outside


def rows(temperatures: Sequence[float], loads: Sequence[int], tasks: Sequence[str] = ("all",)) -> list[Row]:
    found = []
    for number, name in enumerate(METHODS):
        config = {"griffin-tree": GRIFFIN_TREE, "ngram": NGRAM}.get(name)
        for nodes in (8, 24, 59) if name == "griffin-tree" else (None,):
            for temperature in temperatures:
                for at_once in loads:
                    for task in tasks:
                        facts = described(
                            Configuration(name, config), "V2", Sampling(temperature), task=task, nodes=nodes
                        )
                        found.append({**facts, **figures(number, at_once, temperature), "max_concurrency": at_once})
    return found


def figures(number: int, at_once: int, temperature: float) -> Row:
    """Some near 1, some with wide spreads, some hundreds of times the others."""
    speed = (1 + 0.3 * number) / (1 + at_once / 50) * (1 - 0.3 * temperature)
    wide = 0.3 if number % 3 == 0 else 0.02
    drafts: Row = {}
    if number > 1:
        rates = [0.9 / (1 + 0.4 * depth) for depth in range(24 if number == 3 else 4)]
        drafts = {"spec_decode_acceptance_length": 1 + sum(rates), "spec_decode_per_position_acceptance_rates": rates}
    own = {f"{kind}_{key}_ms": 1000 / speed for key in ("ttft", "tpot", "e2el") for kind in ("median", "p99")}
    spread = {"speedup_lowest": speed * (1 - wide), "speedup_highest": speed * (1 + wide), "rounds": 3}
    return {"identical": True, "speedup": speed, **spread, **own, **drafts}


def with_ratios(found: list[Row]) -> list[Row]:
    for row in found:
        if row["method"] == "griffin-tree":
            row |= {"ratio_to_no_nodes": row["speedup"], "lowest_ratio": 0.9, "highest_ratio": 1.9}
    return found


def by_rate(temperatures: Sequence[float]) -> list[Row]:
    found = rows(temperatures, (1, 4))
    return [row | {"request_rate": float(row["max_concurrency"])} for row in found]


PICTURES: dict[str, tuple[Callable[[Sequence[Row]], Figure], list[Row]]] = {
    "speed-up at one load": (speedup, rows([0], [1])),
    "speed-up at many loads": (speedup, rows([0], [1, 4, 16, 64, 256])),
    "speed-up at two temperatures": (speedup, rows([0, 1], [1, 16])),
    "by depth": (by_depth, rows([0], [1])),
    "by depth at two temperatures": (by_depth, rows([0, 1], [1])),
    "by task": (by_task, rows([0], [1], TASKS)),
    "by two tasks": (by_task, rows([0], [1], ("code", "all"))),
    "by task at two temperatures": (by_task, rows([0, 1], [1], TASKS)),
    "by nodes": (by_nodes, with_ratios(rows([0, 1], [1, 4]))),
    "latency": (latency_bars, rows([0, 1], [1])),
    "latency by rate": (latency_by_rate, by_rate([0, 1])),
}


@pytest.mark.parametrize("name", PICTURES)
def test_no_label_covers_another(name: str) -> None:
    picture, found = PICTURES[name]
    assert covered(picture(found)) == []


def test_a_label_that_covers_another_would_be_found() -> None:
    figure = Figure(figsize=(2, 2))
    figure.text(0.5, 0.5, "one")
    figure.text(0.52, 0.5, "other")
    figure.text(0.95, 0.1, "beyond")
    assert covered(figure) == [("one", "other"), ("beyond", "the edge")]
