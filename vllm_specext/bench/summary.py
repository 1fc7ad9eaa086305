"""Results as a table: in the terminal, and in Markdown with what was measured and how to read it."""

from collections.abc import Collection, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from vllm_specext.bench.caveats import caveats
from vllm_specext.bench.results import Results, Row, baseline, labels
from vllm_specext.bench.spread import WIDE, is_one_round, is_ratio_unsure, is_unsure
from vllm_specext.measure.plain import PLAIN, STOCK, WHAT_STOCK_IS

COLUMNS = (
    ("request_rate", "requests/s", "{}"),
    ("max_concurrency", "at a time", "{}"),
    ("temperature", "T", "{:g}"),
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
MEANING = {
    "T": "temperature: at 0 the likeliest token is taken, above it tokens are drawn, with a seed for each request",
    "same tokens": "whether every answer has exactly the tokens of plain decoding",
    "speed-up": "speed divided by that of {baseline} measured in turns with it, the median of the rounds",
    "spread": "the lowest and the highest of the rounds' speed-ups",
    "x no nodes": "speed divided by that of the same engine when it drafts nothing and the drafter only reads along",
    "tokens per verification": "tokens that a pass of the target gives: the accepted ones and its own",
    "drafted per verification": "drafted tokens that a pass of the target checks (nodes of the tree)",
    "first token, ms": "time to the first token, median",
    "further token, ms": "time per token after the first, median",
    "answer, ms": "time to the end of an answer, median",
    "runner": "vLLM's model runner, which vLLM chooses; on a CPU without Triton it is V1 but for our methods, and for "
    "plain decoding where answers are drawn",
}
SAMPLES = (
    f"; {OTHER_SAMPLES}: vLLM's own methods and drafts that are drawn are verified with other random numbers, so that "
    "above temperature 0 an answer has the same distribution and other tokens"
)
SPEEDUP_OF_LATENCY = "the time to the end of an answer of {baseline} divided by this one's, the median of the rounds"
BASELINES = {PLAIN: "plain decoding", STOCK: f"`{STOCK}` ({WHAT_STOCK_IS})"}


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


def markdown(results: Results, head: dict[str, Any], pictures: dict[str, str]) -> str:
    titles, lines = cells(results.rows)
    meanings = MEANING | ({"speed-up": SPEEDUP_OF_LATENCY} if "request_rate" in results.rows[0] else {})
    if any(cell.startswith(UNSURE) for one in lines for cell in one):
        meanings["speed-up"] += (
            f"; {UNSURE}: no result, because the rounds differ by more than {WIDE:.0%} of it, or are one"
        )
    if any(OTHER_SAMPLES in one for one in lines):
        meanings["same tokens"] += SAMPLES
    meanings["speed-up"] = meanings["speed-up"].format(baseline=BASELINES[baseline(results.rows)])
    prompts = results.prompts
    by_task = ", ".join(f"{count} of {task}" for task, count in prompts["counted_by_task"].items())  # type: ignore[attr-defined]
    left_out = [
        f"{prompts[key]} left out because {why}"
        for key, why in (
            ("left_out_as_loops", "the plain answer goes round in circles, which is easy to draft"),
            ("left_out_as_too_long", "they do not fit into a sequence"),
        )
        if prompts.get(key)
    ]
    parts = [
        f"# vllm-specext bench {results.name}",
        f"Target `{head['target']}`, vLLM {head['vllm']}, vllm-specext {head['vllm_specext']}, torch {head['torch']}, "
        f"device {head['device']}, {head['machine']}, {head['date']}.",
        "\n".join(f"> * {sentence}" for sentence in caveats(results, head)),
        f"Prompts: {'; '.join([by_task, *left_out])}. Answers of up to {head['max_tokens']} tokens, "
        f"{head['sampling']}.",
        f"```\n{head['command']}\n```",
        "\n".join(
            ["| " + " | ".join(one) + " |" for one in (titles, ["---"] * len(titles), *lines)],
        ),
        "\n".join(f"* **{title}**: {meanings[title]}" for title in titles if title in meanings),
        *(f"## {title}\n\n![{title}]({file})" for title, file in pictures.items()),
        f"All figures are in `{results.name}.json` (with vLLM's names) and, a line per measurement, in "
        f"`{results.name}.csv`.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"
