"""The documents' tables of what the GPU suite measured."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite.report import engine_rows, load_of
from benchmarks.gpu_suite.store import Store
from scripts.markdown import table

FIGURES = Path(__file__).parents[1] / "benchmarks" / "results"
RESULTS, BUNDLED = FIGURES / "nvidia-h200", FIGURES / "cpu" / "tokens_per_verification.json"
Load = tuple[int, int, str]
TREE, CHAIN, PEER, DEFAULT = "griffin-tree-59", "griffin-chain-4", "eagle-chain-4", "griffin-default"


def by_method() -> dict[str, dict[Load, dict[str, Any]]]:
    """The rows of the engine by method and load."""
    rows: dict[str, dict[Load, dict[str, Any]]] = {}
    store = Store(RESULTS)
    commits = {name: part["machine"]["commit"] for name, part in store.parts.items()}
    for row in engine_rows(store):
        # An earlier suite timed the first prompt that arrived, too, and with it what was loaded for it.
        if row["load"] == "all decode" or commits[f"engine:{row['method']}"] == commits["engine:plain"]:
            rows.setdefault(row["method"], {})[load_of(row)] = row
    return rows


def steps() -> str:
    """Milliseconds by load and method, and from how many tokens per step on that is faster than plain decoding."""
    rows = by_method()
    header = (
        *("requests", "tokens of context", "load", "plain, ms", "vLLM's EAGLE, chain of 4", "GRIFFIN, chain of 4"),
        *("GRIFFIN, tree of 59", "its GPU idle", "its attention"),
    )

    def taken(row: dict[str, Any] | None) -> str:
        return "" if row is None else f"{row['step_ms']:.2f} (from {row['faster_from']:.2f})"

    return table(
        header,
        (
            (
                *load,
                f"{plain['step_ms']:.2f}",
                *(taken(rows[method].get(load)) for method in (PEER, CHAIN, TREE)),
                share(rows[TREE].get(load), "gpu_idle_ms"),
                share(rows[TREE].get(load), "attention_ms"),
            )
            for load, plain in rows["plain"].items()
        ),
    )


def speeds() -> str:
    """Tokens per second of one configuration as a multiple of another's: of two chains at equal acceptance, of a tree
    and a chain with that of the bundled models, of the default and plain decoding with an assumed one."""
    rows = by_method()
    header = (
        *("requests", "tokens of context", "load", "GRIFFIN's chain, of EAGLE's"),
        *("GRIFFIN's tree of 59, of its chain", "the default, of plain"),
    )
    griffin = {draft: accepted("griffin", draft) for draft in ("chain of 4", "tree of 59")}

    def ratio(one: str, other: str, figure: str, load: Load, factor: float = 1.0) -> str:
        found = [rows[method].get(load) for method in (one, other)]
        return "" if None in found else f"{factor * found[0][figure] / found[1][figure]:.2f}"  # type: ignore[index]

    def cells(load: Load) -> tuple[str, ...]:
        return (
            ratio(PEER, CHAIN, "step_ms", load),
            ratio(CHAIN, TREE, "step_ms", load, griffin["tree of 59"] / griffin["chain of 4"]),
            ratio(DEFAULT, "plain", "tokens_per_second", load),
        )

    return table(header, ((*load, *cells(load)) for load in rows["plain"]))


def attention() -> str:
    """Microseconds of tree attention by shape, alone and with another kernel for prefixes, and that kernel's causal
    attention over as many rows."""
    found: dict[tuple[int, ...], dict[str, dict[str, Any]]] = {}
    for row in Store(RESULTS).rows("tree_attention"):
        shape = row["requests"], row["context"], row["rows"], row["kv_heads"]
        found.setdefault(shape, {})[row["implementation"]] = row
    header = (
        *("requests", "tokens of context", "rows of each", "heads of keys", "tree attention, µs"),
        *("with FlashAttention 3 for prefixes, µs", "FlashAttention 3, causal, µs"),
    )

    def taken(row: dict[str, Any]) -> str:
        return f"{row['us']:.1f} ({row['floor_share']:.2f})"

    names = "ours", "ours after FlashAttention 3", "FlashAttention 3 causal"
    return table(header, ((*shape, *(taken(rows[name]) for name in names)) for shape, rows in found.items()))


def kernels() -> str:
    """Microseconds of our small kernels and of torch, by requests."""
    store = Store(RESULTS)
    found: dict[str, dict[tuple[str, int], float]] = {}
    for row in (*store.rows("compaction"), *store.rows("small_kernels")):
        found.setdefault(row["what"], {})[row["implementation"], row["requests"]] = row["us"]
    counts = sorted({requests for times in found.values() for _, requests in times})
    header = ("what", *(f"{count} request{'s' if count > 1 else ''}" for count in counts))
    return table(
        header,
        (
            (what, *(f"{times['ours', count]:.1f} ({times['torch', count]:.0f})" for count in counts))
            for what, times in found.items()
        ),
    )


def accepted(drafter: str, draft: str) -> float:
    """Tokens per verification of a bundled drafter."""
    rows = json.loads(BUNDLED.read_text())["rows"]
    found = (row["tokens_per_verification"] for row in rows if (row["drafter"], row["draft"]) == (drafter, draft))
    return float(next(found))


def attention_ms(row: dict[str, Any]) -> float | None:
    """Of our kernels among those that take most of a step; ``None`` where it was not profiled."""
    own = ("_tree_attention_kernel", "_merge_kernel")
    return sum(kernel["ms_per_step"] for kernel in row.get("kernels", ()) if kernel["name"] in own) or None


def share(row: dict[str, Any] | None, figure: str) -> str:
    ms = None if row is None else attention_ms(row) if figure == "attention_ms" else row.get(figure)
    return "" if row is None or ms is None else f"{ms / row['step_ms']:.1%}"


TABLES: dict[str, Callable[[], str]] = {
    "benchmark gpu steps": steps,
    "benchmark gpu speeds": speeds,
    "benchmark gpu attention": attention,
    "benchmark gpu kernels": kernels,
}
