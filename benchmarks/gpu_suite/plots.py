"""What the suite found, as plots."""

from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite.report import Row, rows_of
from benchmarks.gpu_suite.store import Store

MOST_COLUMNS = 3
"""Of pictures side by side."""


def plots(store: Store) -> list[Path] | None:
    """The files written, beside the results; ``None`` where there is no matplotlib."""
    if find_spec("matplotlib") is None:
        return None
    import matplotlib

    matplotlib.use("Agg")
    drawn = []
    for name, draw in _PLOTS.items():
        rows = [row for part in name.split("+") for row in rows_of(store, part) if "skipped" not in row]
        if rows:
            path = store.folder / f"{name.replace('+', '_')}.png"
            draw(rows, path)
            drawn.append(path)
    return drawn


def _grid(count: int) -> tuple[Any, list[Any]]:
    from matplotlib import pyplot

    columns = min(count, MOST_COLUMNS)
    lines = -(-count // columns)
    size = 4.2 * columns, 3.6 * lines + 0.4
    figure, axes = pyplot.subplots(lines, columns, figsize=size, layout="constrained", squeeze=False)
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return figure, list(axes.flat[:count])


def _save(figure: Any, axes: list[Any], path: Path) -> None:
    from matplotlib import pyplot

    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _lines(axis: Any, rows: Iterable[Row], series: str, x: str, y: str) -> None:
    for name in dict.fromkeys(row[series] for row in rows):
        own = sorted((row for row in rows if row[series] == name and y in row), key=lambda row: row[x])
        axis.plot([row[x] for row in own], [row[y] for row in own], marker="o", label=name)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(lambda number, _: f"{number:g}")
    axis.set_xlabel(x.replace("_", " "))
    axis.grid(alpha=0.3)


def _logarithmic(axis: Any) -> None:
    """A logarithmic scale with plain numbers."""
    from matplotlib.ticker import LogLocator, NullLocator

    axis.set_yscale("log")
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(lambda number, _: f"{number:g}")


def _attention(rows: list[Row], path: Path) -> None:
    """The largest trees, by context."""
    most = max(row["nodes"] for row in rows)
    contexts = sorted({row["context"] for row in rows})
    figure, axes = _grid(len(contexts))
    for axis, context in zip(axes, contexts, strict=True):
        own = [row for row in rows if row["context"] == context and row["nodes"] == most]
        _lines(axis, own, "implementation", "requests", "us")
        _logarithmic(axis)
        axis.set_title(f"context {context}, {most} nodes")
    axes[0].set_ylabel("microseconds")
    _save(figure, axes, path)


def fusion(rows: list[Row], path: Path) -> None:
    figure, axes = _grid(2)
    timed = [row for row in rows if "us" in row]
    for axis, y, label in zip(
        axes, ("us", "bandwidth_share"), ("microseconds", "share of the memory bandwidth"), strict=True
    ):
        _lines(axis, timed, "implementation", "rows", y)
        axis.set_ylabel(label)
    _save(figure, axes, path)


def _small(rows: list[Row], path: Path) -> None:
    kinds = list(dict.fromkeys(row["what"] for row in rows))
    figure, axes = _grid(len(kinds))
    for axis, kind in zip(axes, kinds, strict=True):
        _lines(axis, [row for row in rows if row["what"] == kind], "implementation", "requests", "us")
        _logarithmic(axis)
        axis.set_title(kind)
    for axis in axes[::MOST_COLUMNS]:
        axis.set_ylabel("microseconds per call")
    _save(figure, axes, path)


def engine(rows: list[Row], path: Path) -> None:
    """What decodes after short prompts, by the number of requests."""
    context = min(row["context"] for row in rows)
    rows = [row for row in rows if row["context"] == context and row["load"] == "all decode"]
    figure, axes = _grid(3)
    shown = ("step_ms", "gpu_idle_share", "tokens_per_second")
    labels = ("milliseconds per step", "share of a step that the GPU waits", "tokens/s with assumed acceptance")
    for axis, y, label in zip(axes, shown, labels, strict=True):
        _lines(axis, rows, "method", "requests", y)
        if y == "gpu_idle_share":
            axis.set_ylim(bottom=0)
        else:
            _logarithmic(axis)
        axis.set_ylabel(label)
    _save(figure, axes, path)


_PLOTS: dict[str, Callable[[list[Row], Path], None]] = {
    "tree_attention": _attention,
    "tgf": fusion,
    "compaction+small_kernels": _small,
    "engine": engine,
}
