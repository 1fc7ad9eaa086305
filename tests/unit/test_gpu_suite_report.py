"""The GPU suite's report: tables, plots and files, from made-up results."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.gpu_suite import __main__ as command_line
from benchmarks.gpu_suite import parts, plots, report
from benchmarks.gpu_suite.engine_methods import Load
from benchmarks.gpu_suite.store import Store


def made_up() -> dict[str, list[dict[str, Any]]]:
    timed = {"us": 12.5, "low_us": 12.0, "high_us": 13.0, "how": "graph"}
    shares = {"bandwidth_share": 0.71, "floor_us": 8.9, "floor_share": 0.71}
    shapes = [{"requests": requests, "context": 8192, "nodes": 60} for requests in (1, 8)]
    tile = {"tile": "tried", "block_m": 64, "block_n": 64, "warps": 4, "stages": 3, "runs": 4}
    loads = [load.row() for load in (Load(1, 1024), Load(4, 1024), Load(1, 8192), Load(4, 1024, arriving=True))]
    step = {"gpu_busy_ms": 6.0, "gpu_idle_share": 0.2, "tokens_per_step": 3.0, "tokens_per_second": 300.0}
    return {
        "bandwidth": [{"what": "copy", **timed, "terabytes_per_second": 3.0}],
        "correctness": [{"file": "test_a", "passed": 3, "failed": 0, "skipped_tests": 0, "wrong": False}],
        "tree_attention": [
            *({"implementation": "ours", **shape, **timed, **shares, "ratio_to_causal": 1.1} for shape in shapes),
            {"implementation": "FlashInfer custom mask", **shapes[0], "skipped": "not installed"},
        ],
        "tgf": [
            *({"implementation": "ours, fused", "rows": rows, **timed, **shares} for rows in (1, 8)),
            {"implementation": "FUSED_UP_TO_ROWS", "rows": 8},
        ],
        "compaction": [{"what": "compaction", "implementation": "ours", "requests": 1, **timed, "eager_us": 40.0}],
        "attention_tiles": [
            {**shapes[0], "runs": 8, "tile": "as chosen", **timed, **shares},
            *({**shapes[0], **tile, **timed, **shares, "us": us} for us in (9.0, 20.0, 11.0, 10.0)),
        ],
        "engine:plain": [{"method": "plain", **load, "step_ms": 8.0, **step} for load in loads],
        "engine:griffin-tree-59": [
            {"method": "griffin-tree-59", **load, "step_ms": 12.0, "kernels": [{"name": "k"}], **step} for load in loads
        ],
    }


@pytest.fixture
def store(tmp_path: Path) -> Store:
    store = Store(tmp_path / "nvidia-h100")
    for name, rows in made_up().items():
        store.keep(name, {"status": "done", "rows": rows, "key": {}}, [each.name for each in parts.PARTS])
    return store


def test_tables_plots_and_few_files(store: Store) -> None:
    console = Console(width=200, record=True, file=io.StringIO())
    assert command_line.summarise(console, store, dict.fromkeys(store.parts, "done")) == 0
    shown = console.export_text()
    for text in ("tree_attention", "griffin-tree-59", "not installed", "FUSED_UP_TO_ROWS"):
        assert text in shown
    files = sorted(path.name for path in store.folder.iterdir())
    plots = ["compaction_small_kernels.png", "engine.png", "tgf.png", "tree_attention.png"]
    assert files == sorted(["suite.csv", "suite.json", *plots])
    assert len(files) <= 8


def test_without_matplotlib_there_are_tables_and_a_sentence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    console = Console(width=200, record=True, file=io.StringIO())
    command_line.summarise(console, store, {})
    assert "no matplotlib" in console.export_text()
    assert not list(store.folder.glob("*.png"))


def test_a_wrong_row_and_a_failed_part_give_status_1(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "plots", lambda store: [])
    console = Console(file=io.StringIO())
    assert command_line.summarise(console, store, {"bandwidth": "failed, 0 rows, 3 s"}) == 1
    assert command_line.summarise(console, store, {"bandwidth": "stopped, 0 rows, 3 s"}) == 0
    rows = [{"file": "failure", "test": "bad", "message": "", "wrong": True}]
    store.keep("correctness", {"status": "done", "rows": rows, "key": {}}, [])
    assert command_line.summarise(console, store, {"correctness": "done, 1 rows, 3 s"}) == 1


def test_methods_are_compared_with_plain_decoding(store: Store) -> None:
    rows = [row for row in report.engine_rows(store) if row["method"] == "griffin-tree-59"]
    assert [row["faster_from"] for row in rows] == [1.5] * 4


def test_each_load_has_a_row_that_says_from_where_on_drafting_pays(store: Store) -> None:
    store.keep("engine:eagle-chain-4", {"status": "done", "rows": [{**loads_row(4), "method": "eagle-chain-4"}]}, [])
    console = Console(width=150, record=True, file=io.StringIO())
    console.print(report.break_even(store))
    lines = [re.findall(r"[\w.-]+", line) for line in console.export_text().splitlines()]
    assert ["1", "8192", "1.50", "all", "decode"] in lines
    assert ["4", "1024", "1.25", "1.50", "all", "decode"] in lines
    assert report.break_even(Store(store.folder / "none")) is None


def loads_row(requests: int) -> dict[str, Any]:
    return Load(requests, 1024).row() | {"step_ms": 10.0}


def test_of_tried_tiles_the_fastest_are_shown(store: Store) -> None:
    assert [row["us"] for row in report.rows_of(store, "attention_tiles")] == [12.5, 9.0, 10.0, 11.0]


def test_the_csv_has_a_line_for_each_row_under_all_columns(store: Store) -> None:
    lines = (store.folder / "suite.csv").read_text().splitlines()
    assert len(lines) == 1 + sum(map(len, made_up().values()))
    columns = lines[0].split(",")
    assert columns[0] == "part"
    assert "step_ms" in columns
    assert "kernels" not in columns
    assert all(line.split(",")[0] in store.parts for line in lines[1:])


def test_parts_stay_in_their_order_whatever_ran_last(store: Store) -> None:
    store.keep("bandwidth", {"status": "done", "rows": [], "key": {}}, [each.name for each in parts.PARTS])
    order = [part.name for part in parts.PARTS if part.name in made_up()]
    assert list(json.loads((store.folder / "suite.json").read_text())["parts"]) == order
