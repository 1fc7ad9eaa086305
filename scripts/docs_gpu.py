"""The documents' tables of what the GPU suite measured."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu_suite.report import engine_rows, load_of
from benchmarks.gpu_suite.store import Store
from scripts.markdown import table

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results" / "nvidia-h200"
TREE = "griffin-tree-59"


def steps() -> str:
    """Of plain decoding and of GRIFFIN's largest tree, by load."""
    rows = engine_rows(Store(RESULTS))
    plain = {load_of(row): row["step_ms"] for row in rows if row["method"] == "plain"}
    header = (
        "requests",
        "tokens of context",
        "load",
        "plain, ms",
        "tree of 59, ms",
        "faster from",
        "GPU idle",
        "attention",
    )
    return table(
        header,
        (
            (
                *load_of(row)[:2],
                row["load"],
                f"{plain[load_of(row)]:.2f}",
                f"{row['step_ms']:.2f}",
                f"{row['faster_from']:.2f}",
                share(row, row.get("gpu_idle_ms")),
                share(row, attention_ms(row)),
            )
            for row in rows
            if row["method"] == TREE
        ),
    )


def attention_ms(row: dict[str, Any]) -> float | None:
    """Of our kernels among those that take most of a step; ``None`` where it was not profiled."""
    own = ("_tree_attention_kernel", "_merge_kernel")
    return sum(kernel["ms_per_step"] for kernel in row.get("kernels", ()) if kernel["name"] in own) or None


def share(row: dict[str, Any], ms: float | None) -> str:
    return "" if ms is None else f"{ms / row['step_ms']:.1%}"


TABLES: dict[str, Callable[[], str]] = {"benchmark gpu steps": steps}
