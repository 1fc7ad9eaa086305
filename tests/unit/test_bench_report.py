"""What a benchmark leaves: files that hold the same figures, pictures, and a page to be read first."""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from vllm_specext.bench.configurations import NGRAM, Configuration
from vllm_specext.bench.report import header, write
from vllm_specext.bench.results import Results, described, labels
from vllm_specext.bench.rows import summarised
from vllm_specext.bench.summary import cells, table
from vllm_specext.bench.workload import Workload
from vllm_specext.measure.bundled import GRIFFIN_TREE, MODELS
from vllm_specext.measure.plain import PLAIN, STOCK
from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Answer, Turn

PROMPTS: dict[str, object] = {
    "counted": 2,
    "left_out_as_too_long": 0,
    "left_out_as_loops": 3,
    "counted_by_task": {"code": 1, "prose": 1},
}


def turns(*durations: float, drafts: Speculation = Speculation()) -> list[Turn]:  # noqa: B008  # a frozen value
    return [Turn([Answer(list(range(10)), 0.1, 1.0, 5)], duration, drafts) for duration in durations]


def sweep() -> Results:
    drafts = Speculation(10, 80, (8, 4, 0, 0))
    rows = []
    for at_once in (1, 4):
        own = {"max_concurrency": at_once}
        plain = turns(4, 5)
        rows.append({**described(Configuration(PLAIN), "V1"), **own, **summarised(plain, plain)})
        rows.append({**described(Configuration("ngram", NGRAM), "V1"), **own, **summarised(turns(3, 9), plain)})
        for nodes in (8, 24):
            facts = described(Configuration("tree", GRIFFIN_TREE), "V2", nodes=nodes)
            rows.append({**facts, **own, **summarised(turns(2, 2, drafts=drafts), plain)})
    return Results("sweep", PROMPTS, rows)


def with_stock() -> Results:
    """The same beside vLLM as it is."""
    rows: list[dict[str, Any]] = []
    for at_once in (1, 4):
        found = summarised(turns(6, 6), turns(6, 6))
        rows.append({**described(Configuration(STOCK), "V1"), "max_concurrency": at_once, **found})
    return Results("sweep", PROMPTS, rows + sweep().rows)


def by_rate() -> Results:
    rows = []
    for name, quicker in (("plain", 1.0), ("tree", 0.5)):
        for rate in (1.0, "inf"):
            latencies = {
                f"{kind}_{key}_ms": 100 * quicker for key in ("ttft", "tpot", "e2el") for kind in ("median", "p99")
            }
            config = Configuration(name, GRIFFIN_TREE if name == "tree" else None)
            rows.append({**described(config, None), "request_rate": rate, "identical": True, **latencies})
    return Results("serve", PROMPTS, rows)


def written(results: Results, folder: Path) -> dict[str, Path]:
    return {path.name: path for path in write(results, header(Workload(None, [], [], 48, 2)), folder)}


def test_json_and_csv_hold_the_same_rows(tmp_path: Path) -> None:
    results = sweep()
    files = written(results, tmp_path / "new" / "folder")
    everything = json.loads(files["sweep.json"].read_text())
    assert everything["rows"] == results.rows
    assert {"date", "command", "vllm", "torch", "vllm_specext", "machine", "device", "target"} <= set(everything)
    with files["sweep.csv"].open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(results.rows)
    for flat, row in zip(rows, results.rows, strict=True):
        assert float(flat["speedup"]) == row["speedup"]
        assert flat["identical"] == "yes"
    assert rows[2]["spec_decode_per_position_acceptance_rates"] == "0.8 0.4 0.0 0.0"
    assert rows[0]["spec_decode_acceptance_length"] == ""


def test_acceptance_by_position_has_the_columns_of_speculators(tmp_path: Path) -> None:
    """As ``evaluate.py`` of speculators writes them; ``subset`` and the counts come before the positions."""
    results = sweep()
    with written(results, tmp_path)["sweep-by-position.csv"].open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
    theirs = ["subset", "num_drafts", "num_draft_tokens", "num_accepted_tokens", "acceptance_length"]
    positions = [f"acceptance_at_pos_{place}" for place in range(4)]
    ours = ["method", "num_speculative_tokens", "max_concurrency", "temperature", "top_p"]
    assert reader.fieldnames == [*ours, *theirs, *positions]
    assert [row["method"] for row in rows] == ["tree"] * 4
    first = {key: float(rows[0][key]) for key in (*theirs[1:], *positions)}
    assert list(first.values()) == [20, 160, 24, 2.2, 0.8, 0.4, 0, 0]
    assert rows[0]["subset"] == "all"


def test_without_drafts_there_is_no_acceptance_by_position(tmp_path: Path) -> None:
    plain = [row for row in sweep().rows if row["method"] == "plain"]
    assert "sweep-by-position.csv" not in written(Results("sweep", PROMPTS, plain), tmp_path)


def test_bundled_models_are_named_without_their_place(tmp_path: Path) -> None:
    files = written(sweep(), tmp_path)
    assert "bundled:griffin" in files["sweep.json"].read_text()
    assert all(str(MODELS) not in files[name].read_text() for name in ("sweep.json", "sweep.csv", "sweep.md"))


@pytest.mark.parametrize(
    ("results", "pictures"),
    [
        (sweep(), {"sweep-speedup-by-concurrency.png", "sweep-by-depth.png"}),
        (with_stock(), {"sweep-speedup-by-concurrency.png", "sweep-by-depth.png"}),
        (Results("latency", PROMPTS, sweep().rows[:4]), {"latency.png", "latency-speedup-by-concurrency.png"}),
        (by_rate(), {"serve-latency-by-request-rate.png"}),
    ],
    ids=["sweep", "sweep beside vLLM as it is", "latency", "serve"],
)
def test_pictures_are_drawn_and_the_summary_shows_them(results: Results, pictures: set[str], tmp_path: Path) -> None:
    files = written(results, tmp_path)
    assert pictures <= set(files)
    page = files[f"{results.name}.md"].read_text()
    for name in files:
        if name.endswith(".png"):
            assert files[name].read_bytes().startswith(b"\x89PNG")
            assert f"({name})" in page


def test_sizes_are_drawn_where_they_were_compared_with_no_nodes(tmp_path: Path) -> None:
    results = sweep()
    assert "sweep-by-nodes.png" not in written(results, tmp_path)
    for row in results.rows:
        if row["method"] == "tree":
            row |= {"ratio_to_no_nodes": row["num_speculative_tokens"] / 10, "lowest_ratio": 0.1, "highest_ratio": 3.0}
    files = written(results, tmp_path)
    assert files["sweep-by-nodes.png"].read_bytes().startswith(b"\x89PNG")
    page = files["sweep.md"].read_text()
    assert "(sweep-by-nodes.png)" in page
    assert "**x no nodes**: speed divided by that of the same engine when it drafts nothing" in page
    titles, lines = cells(results.rows)
    assert [line[titles.index("x no nodes")] for line in lines][:4] == ["", "", "~0.80", "~2.40"]


def test_acceptance_is_drawn_by_task_and_by_depth(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = []
    for task in ("code", "prose", "all"):
        facts = described(Configuration("tree", GRIFFIN_TREE), "V2", task=task)
        rates = {"spec_decode_acceptance_length": 2.2, "spec_decode_per_position_acceptance_rates": [0.8, 0.4]}
        rows.append({**facts, "max_concurrency": 1, "identical": True, **rates})
    files = written(Results("acceptance", PROMPTS, rows), tmp_path)
    assert {"acceptance-by-task.png", "acceptance-by-depth.png"} <= set(files)


def test_where_nothing_was_accepted_no_depths_are_drawn(tmp_path: Path) -> None:
    results = sweep()
    for row in results.rows:
        if "spec_decode_per_position_acceptance_rates" in row:
            row["spec_decode_per_position_acceptance_rates"] = [0.0, 0.0]
    assert not [name for name in written(results, tmp_path) if "by-depth" in name]


def test_the_summary_says_what_was_left_out_and_shows_the_spread(tmp_path: Path) -> None:
    page = written(sweep(), tmp_path)["sweep.md"].read_text()
    assert "1 of code, 1 of prose; 3 left out because the plain answer goes round in circles" in page
    assert "too_long" not in page
    assert "do not fit" not in page
    assert "0.56-1.33" in page
    assert "speed divided by that of plain decoding measured in turns with it" in page


def test_a_row_with_other_tokens_says_no_and_sizes_are_told_apart() -> None:
    results = sweep()
    results.rows[2]["identical"] = False
    titles, lines = cells(results.rows)
    assert [line[0] for line in lines][:4] == ["plain", "ngram", "tree, 8 nodes", "tree, 24 nodes"]
    assert [line[titles.index("same tokens")] for line in lines][:4] == ["yes", "yes", "NO", "yes"]
    assert "task" not in titles
    assert labels(results.rows)[0] == "plain"


def test_samples_of_another_method_are_no_fault_and_the_page_says_why(tmp_path: Path) -> None:
    results = sweep()
    rows: list[dict[str, Any]] = []
    for row, promised in zip(results.rows[:3], (True, False, True), strict=True):
        drawn = {"temperature": 1.0, "identical": row["method"] == "plain", "same_tokens_promised": promised}
        rows += [row, row | drawn]
    found = Results("sweep", PROMPTS, rows)
    titles, lines = cells(rows)
    column = [(line[0], line[titles.index("T")], line[titles.index("same tokens")]) for line in lines]
    assert [one for one in column if one[1] == "1"] == [
        ("plain", "1", "yes"),
        ("ngram", "1", "other samples"),
        ("tree", "1", "NO"),
    ]
    page = written(found, tmp_path)["sweep.md"].read_text()
    assert "other samples: vLLM's own methods" in page
    assert "other samples" not in written(results, tmp_path / "greedy")["sweep.md"].read_text()
    assert labels(rows, temperatures=True)[:2] == ["plain, T=0", "plain, T=1"]


@pytest.mark.parametrize("stock", [True, False])
def test_the_page_and_the_table_say_what_speed_is_relative_to(tmp_path: Path, stock: bool) -> None:
    """Files of older versions have no row of vLLM as it is."""
    results = with_stock() if stock else sweep()
    page = written(results, tmp_path)["sweep.md"].read_text()
    as_it_is = "plain decoding by vLLM as it is, without the plug-in's kernels"
    assert (f"speed divided by that of `plain-stock` ({as_it_is}) measured in turns with it" in page) == stock
    assert ("speed divided by that of plain decoding measured in turns with it" in page) != stock
    titles, lines = cells(results.rows)
    spreads = {line[0]: line[titles.index("spread")] for line in lines}
    assert spreads.pop("plain-stock" if stock else "plain") == ""
    assert all(spreads.values())
    assert ("plain" in spreads) == stock
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(results))
    assert (f"over plain-stock: {as_it_is}" in " ".join(console.export_text().split())) == stock


@pytest.mark.parametrize("results", [sweep(), with_stock(), by_rate()], ids=["sweep", "with stock", "serve"])
def test_the_table_fits_a_terminal(results: Results) -> None:
    for row in results.rows:
        row["method"] = row["method"].replace("tree", "griffin-tree")
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(table(results))
    lines = console.export_text().splitlines()
    assert not any("…" in line for line in lines)
    wanted = (
        "griffin-tree, 24 nodes 1 yes ~2.25 2.00-2.50 5.0 2.20" if results.name == "sweep" else "griffin-tree 1.0 yes"
    )
    assert any(" ".join(line.split()).startswith(wanted) for line in lines)
