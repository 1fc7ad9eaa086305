"""Results as pictures that need no other explanation. Which ones there are follows from what was measured."""

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from vllm_specext.bench.plot_style import DPI, MARKERS
from vllm_specext.bench.plots_acceptance import by_depth, by_task, has_depths
from vllm_specext.bench.plots_latency import latency_bars, latency_by_rate
from vllm_specext.bench.plots_speed import by_nodes, speedup
from vllm_specext.bench.results import Results, Row, baseline

__all__ = ["DPI", "MARKERS", "draw"]


def draw(results: Results, folder: Path) -> dict[str, str]:
    """Write what there is to see to ``folder``; file names by what they show."""
    name, rows = results.name, results.rows
    wanted: list[tuple[str, str, Callable[[Sequence[Row]], Figure]]] = []
    if "request_rate" in rows[0]:
        wanted.append(("Latency by request rate", f"{name}-latency-by-request-rate.png", latency_by_rate))
    elif name == "latency":
        wanted.append(("Latency of one request at a time", "latency.png", latency_bars))
    if any(row["method"] != baseline(rows) and "speedup" in row for row in rows) and "request_rate" not in rows[0]:
        wanted.append(("Speed-up by concurrency", f"{name}-speedup-by-concurrency.png", speedup))
    if len({row["task"] for row in rows}) > 1:
        wanted.append(("Tokens per verification by task", f"{name}-by-task.png", by_task))
    if any(has_depths(row) for row in rows) and "request_rate" not in rows[0]:
        wanted.append(("Acceptance by depth", f"{name}-by-depth.png", by_depth))
    if any("ratio_to_no_nodes" in row for row in rows):
        wanted.append(("Speed by nodes", f"{name}-by-nodes.png", by_nodes))
    for _, file, picture in wanted:
        picture(rows).savefig(folder / file, dpi=DPI)
    return {title: file for title, file, _ in wanted}
