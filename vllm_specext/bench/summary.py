"""Results as a table, and as it is shown in the terminal."""

from collections.abc import Collection, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from vllm_specext.bench.results import Results, Row, baseline, labels
from vllm_specext.bench.spread import is_one_round, is_ratio_unsure, is_unsure
from vllm_specext.measure.plain import STOCK, WHAT_STOCK_IS

COLUMNS = (
    ("request_rate", "requests/s", "{}"),
    ("temperature", "T", "{:g}"),
    ("max_concurrency", "at a time", "{}"),
    ("task", "task", "{}"),
    ("identical", "same tokens", "{}"),
    ("speedup", "speed-up", "{:.2f}"),
    ("spread", "spread", "{}"),
    ("ratio_to_no_nodes", "x no nodes", "{:.2f}"),
    ("output_throughput", "tokens/s", "{:.1f}"),
    ("spec_decode_acceptance_length", "tokens per verification", "{:.2f}"),
    ("nodes_per_verification", "drafted per verification", "{:.1f}"),
    ("median_ttft_ms", "first token, ms", "{:.1f}"),
    ("median_tpot_ms", "further token, ms", "{:.1f}"),
    ("median_e2el_ms", "answer, ms", "{:.0f}"),
    ("model_runner", "runner", "{}"),
)
"""Key, title and format; a column is left out where it would be empty or say the same everywhere."""
VARYING = ("task", "max_concurrency", "temperature")
"""Keys whose column says nothing where it says the same everywhere."""
UNSURE = "~"
"""Stands before a speed that is no result: its rounds differ widely, or are one."""
OTHER_SAMPLES = "other samples"
LATENCIES = ("median_ttft_ms", "median_tpot_ms", "median_e2el_ms")
BY_LATENCY = ("latency", "serve")


def cells(rows: Sequence[Row], without: Collection[str] = ()) -> tuple[list[str], list[list[str]]]:
    """Titles and lines, but not of the keys ``without``."""
    base = baseline(rows)
    found = [line(row, row["method"] == base) for row in rows]
    kept = [
        (key, title)
        for key, title, _ in COLUMNS
        if key not in without and any(one[key] for one in found) and (key not in VARYING or varies(key, found))
    ]
    lines = [[name, *(one[key] for key, _ in kept)] for name, one in zip(labels(rows), found, strict=True)]
    return ["method", *(title for _, title in kept)], lines


def varies(key: str, lines: Sequence[dict[str, str]]) -> bool:
    return len({one[key] for one in lines}) > 1


def temperatures(rows: Sequence[Row]) -> str:
    """How answers were drawn, in two words. Files of older versions are greedy."""
    found = sorted({row.get("temperature", 0) for row in rows})
    return "greedy" if found == [0] else f"temperature {' and '.join(f'{one:g}' for one in found)}"


def line(row: Row, is_baseline: bool) -> dict[str, str]:
    """The text of each column, empty where the row has no such figure."""
    known = dict(row)
    if "speedup_lowest" in row and not is_baseline:
        known["spread"] = (
            "one round" if is_one_round(row) else f"{row['speedup_lowest']:.2f}-{row['speedup_highest']:.2f}"
        )
    if (identical := row.get("identical")) is not None:
        known["identical"] = "yes" if identical else "NO" if row.get("same_tokens_promised", True) else OTHER_SAMPLES
    if drafts := row.get("spec_decode_num_drafts"):
        known["nodes_per_verification"] = row["spec_decode_draft_tokens"] / drafts
    texts = {key: "" if known.get(key) is None else shown.format(known[key]) for key, _, shown in COLUMNS}
    unsure = {"speedup": not is_baseline and is_unsure(row), "ratio_to_no_nodes": is_ratio_unsure(row)}
    return {key: UNSURE + text if text and unsure.get(key) else text for key, text in texts.items()}


def table(results: Results) -> Table:
    """The columns that fit into a terminal; the Markdown page has them all."""
    by_latency = ("output_throughput", "spec_decode_acceptance_length", "max_concurrency")
    left_out = [
        "nodes_per_verification",
        "ratio_to_no_nodes",
        "model_runner",
        *(by_latency if results.name in BY_LATENCY else LATENCIES),
    ]
    titles, lines = cells(results.rows, left_out)
    title = f"{results.name}: {results.prompts['counted']} prompts, {temperatures(results.rows)}"
    has_stock = "speed-up" in titles and baseline(results.rows) == STOCK
    note = f"speed-ups are over {STOCK}: {WHAT_STOCK_IS}" if has_stock else None
    shown = Table(title=title, caption=note, box=SIMPLE_HEAD, padding=0)
    for title, *column in zip(titles, *lines, strict=True):
        width = max(map(len, [*title.split(), *column]))
        shown.add_column(title, justify="left" if title in ("method", "task") else "right", width=width)
    for one in lines:
        shown.add_row(*("[red]NO[/red]" if cell == "NO" else cell for cell in one))
    return shown
