"""What the suite found, as tables for the terminal."""

from collections.abc import Iterable
from typing import Any

from rich.table import Table

from benchmarks.gpu_suite.engine_methods import METHODS
from benchmarks.gpu_suite.store import Store

Row = dict[str, Any]
LOSSLESS = ("method", "against", "requests", "different", "drafts", "accepted", "seconds", "message")
COLUMNS: dict[str, tuple[str, ...]] = {
    "bandwidth": ("what", "us", "terabytes_per_second", "teraflops"),
    "correctness": ("file", "passed", "failed", "skipped_tests", "seconds", "test", "message"),
    "tree_attention": (
        *("implementation", "requests", "context", "nodes", "rows", "kv_heads", "us", "bandwidth_share"),
        *("floor_share", "ratio_to_causal", "missed", "difference", "how"),
    ),
    "latent_attention": (
        *("implementation", "heads", "requests", "context", "nodes", "us", "bandwidth_share", "floor_share"),
        *("ratio_to_causal", "difference", "how"),
    ),
    "tgf": ("implementation", "rows", "us", "bandwidth_share", "floor_share", "difference", "how"),
    "compaction": ("what", "implementation", "requests", "us", "eager_us", "how"),
    "small_kernels": ("what", "implementation", "requests", "us", "eager_us", "how"),
    "attention_tiles": (
        *("requests", "context", "nodes", "tile", "block_m", "block_n", "warps", "stages", "runs", "us"),
        "floor_share",
    ),
    "tgf_tiles": ("rows", "tile", "block_m", "block_n", "depth_bytes", "stages", "warps", "us", "floor_share"),
    "lossless": LOSSLESS,
    "lossless_methods": LOSSLESS,
    "lossless_hybrid": LOSSLESS,
    "lossless_latent": LOSSLESS,
    "lossless_eager": LOSSLESS,
    "engine": (
        *("method", "requests", "context", "load", "step_ms", "gpu_busy_ms", "gpu_idle_share", "launches_per_step"),
        *("host_launches_per_step", "graphs_per_step"),
        *("tokens_per_step", "faster_from", "tokens_per_second", "message"),
    ),
}
OF_OTHER_STEPS = (
    *("gpu_busy_ms", "gpu_idle_ms", "gpu_idle_share", "launches_per_step"),
    *("host_launches_per_step", "graphs_per_step"),
)
"""What a profile of other steps than those that are timed says, which where drafts have no fixed size is nothing."""
BEST_TILES = 3
BY_SHAPE = {"attention_tiles": ("requests", "context", "nodes"), "tgf_tiles": ("rows",)}


def engine_rows(store: Store) -> list[Row]:
    """Of all methods, with the tokens per step from which on a method is faster than plain decoding."""
    rows = [dict(row) for name in store.parts if name.startswith("engine:") for row in store.rows(name)]
    plain = {load_of(row): row["step_ms"] for row in rows if row["method"] == "plain"}
    for row in rows:
        if not METHODS[row["method"]].fixed:
            for figure in OF_OTHER_STEPS:
                row.pop(figure, None)
        if row["method"] != "plain" and load_of(row) in plain:
            row["faster_from"] = round(row["step_ms"] / plain[load_of(row)], 2)
    return rows


def load_of(row: Row) -> tuple[int, int, str]:
    return row["requests"], row["context"], row["load"]


def break_even(store: Store) -> Table | None:
    """By load, the tokens per step from which on each method is faster than plain decoding. No acceptance is assumed in
    them. ``None`` where nothing was measured."""
    rows = [row for row in engine_rows(store) if "faster_from" in row]
    methods = list(dict.fromkeys(row["method"] for row in rows))
    if not rows:
        return None
    table = Table(title="faster than plain decoding from so many tokens per step", title_justify="left")
    for column in ("requests", "context", *methods):
        table.add_column(column, justify="right")
    table.add_column("load")
    found = {(load_of(row), row["method"]): row["faster_from"] for row in rows}
    for load in dict.fromkeys(map(load_of, rows)):
        cells = (f"{found[load, name]:.2f}" if (load, name) in found else "" for name in methods)
        table.add_row(str(load[0]), str(load[1]), *cells, load[2])
    return table


def best(rows: Iterable[Row], by: tuple[str, ...]) -> list[Row]:
    """Of tried tiles: by shape, what the kernel chose and the fastest others."""
    shapes: dict[tuple, list[Row]] = {}
    for row in rows:
        if "us" in row:
            shapes.setdefault(tuple(row[key] for key in by), []).append(row)
    chosen = []
    for of_shape in shapes.values():
        chosen += [row for row in of_shape if row["tile"] == "as chosen"]
        tried = [row for row in of_shape if row["tile"] != "as chosen"]
        chosen += sorted(tried, key=lambda row: row["us"])[:BEST_TILES]
    return chosen


def rows_of(store: Store, name: str) -> list[Row]:
    rows = engine_rows(store) if name == "engine" else store.rows(name)
    return best(rows, BY_SHAPE[name]) if name in BY_SHAPE else rows


def tables(store: Store) -> list[Table]:
    shown = []
    for name, columns in COLUMNS.items():
        rows = rows_of(store, name)
        if not rows:
            continue
        table = Table(title=name, title_justify="left")
        used = [column for column in columns if any(column in row for row in rows)]
        for column in used:
            table.add_column(column.replace("_", " "), justify="left" if column in _TEXT else "right")
        for row in rows:
            cells = [_cell(row.get(column)) for column in used]
            if "skipped" in row:
                cells[-1] = row["skipped"][:60]
            table.add_row(*cells, style="red" if row.get("wrong") else None)
        shown.append(table)
    return [*shown, *filter(None, [break_even(store)])]


_TEXT = ("what", "file", "implementation", "method", "against", "tile", "test", "message", "how", "missed", "load")


def _cell(value: Any) -> str:
    if value is None:
        return ""
    return (
        f"{value:.3g}"
        if isinstance(value, float) and abs(value) < 100
        else f"{value:.0f}"
        if isinstance(value, float)
        else str(value)
    )
