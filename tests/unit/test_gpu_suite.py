"""The GPU suite without a GPU: what is left to go wrong on one is what a GPU alone can show."""

import io
import json
import math
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from rich.console import Console
from torch.nn.attention import SDPBackend

from benchmarks.gpu_suite import __main__ as command_line
from benchmarks.gpu_suite import (
    attention,
    attention_peers,
    ceilings,
    correctness,
    dummy_models,
    engine,
    fusion,
    machine,
    parts,
    report,
    runner,
    small_kernels,
    synthetic,
    timing,
)
from benchmarks.gpu_suite.attention_problem import Problem, Shape, random_trees
from benchmarks.gpu_suite.store import Store
from vllm_specext.methods.griffin.checkpoint import read_shape
from vllm_specext.tree.walk import accept_tree

SMALL = Shape(2, 50, 12, heads=4, kv_heads=2, head_size=32)
MACHINE = {"gpu": "NVIDIA H100 80GB HBM3", "driver": "580", "torch": "2.11.0", "triton": "3.6.0", "vllm": None}
on_cpu = pytest.mark.skipif(timing.DEVICE != "cpu", reason="a GPU has other kernels and sizes")


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree of sources in place of the project's."""
    (tmp_path / "one.py").write_text("1")
    (tmp_path / "two.py").write_text("2")
    monkeypatch.setattr(runner, "digest", lambda paths: machine.digest(paths, tmp_path))
    return tmp_path


def part(name: str, **changes: Any) -> parts.Part:
    made = parts.Part(name, "about it", "", "", least=10, limit=100, sources=(f"{name}.py",))
    return replace(made, **changes)


class Suite:
    """Runs parts that take 60 s by a clock of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ran, self.now = folder, [], 0.0
        self.result: dict[str, Any] = {"status": "done", "rows": [{"us": 1.0}], "message": ""}

    def run(self, names: tuple[str, ...] = ("one", "two"), **options: Any) -> dict[str, str]:
        self.ran.clear()

        def one(which: parts.Part, seconds: float) -> dict[str, Any]:
            self.ran.append((which.name, seconds))
            self.now += 60
            return {"seconds": 60.0, **self.result}

        arguments: dict[str, Any] = {"budget": 1000.0, "again": False} | options
        described = arguments.pop("described", MACHINE)
        return runner.run_all(
            [part(name, **arguments.pop(name, {})) for name in names],
            Store(self.folder),
            described,
            **arguments,
            order=["one", "two"],
            tell=lambda text: None,
            run=one,
            clock=lambda: self.now,
        )


def test_without_a_gpu_a_sentence_and_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command_line.main([]) == 2
    assert capsys.readouterr().out.strip() == command_line.NO_GPU


def test_the_parts_are_listed_and_an_unknown_one_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main(["--list"]) == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert listed == [each.name for each in parts.PARTS]
    with pytest.raises(SystemExit) as ended:
        command_line.main(["--parts", "tree"])
    assert ended.value.code == 2
    assert "there is no part 'tree'" in capsys.readouterr().err


def test_engine_stands_for_all_its_methods() -> None:
    assert [each.arguments for each in parts.chosen(["engine"])] == [(name,) for name in parts.ENGINE_METHODS]
    assert [each.name for each in parts.chosen(["tgf", "engine:plain"])] == ["tgf", "engine:plain"]
    assert set(parts.ENGINE_METHODS) == set(engine.METHODS)


@pytest.mark.parametrize("each", parts.PARTS, ids=lambda each: each.name)
def test_every_part_has_its_sources_and_its_function(each: parts.Part) -> None:
    assert all((machine.ROOT / path).exists() for path in each.sources)
    assert f"benchmarks/gpu_suite/{each.module}.py" in each.sources
    assert callable(getattr(import_module(f"benchmarks.gpu_suite.{each.module}"), each.function))


def test_parts_that_are_done_are_not_run_again(tmp_path: Path, sources: Path) -> None:
    suite = Suite(tmp_path / "results")
    assert set(suite.run().values()) == {"done, 1 rows, 60 s"}
    assert suite.run() == {"one": "done before", "two": "done before"}
    assert suite.ran == []
    suite.run(again=True)
    assert len(suite.ran) == 2


def test_changed_sources_and_versions_run_their_parts_again(tmp_path: Path, sources: Path) -> None:
    suite = Suite(tmp_path / "results")
    suite.run()
    (sources / "two.py").write_text("3")
    assert suite.run()["one"] == "done before"
    assert [name for name, _ in suite.ran] == ["two"]
    suite.run(described=MACHINE | {"triton": "3.9.0"})
    assert len(suite.ran) == 2


@pytest.mark.parametrize("status", ["failed", "stopped"])
def test_parts_that_did_not_end_are_run_again_and_keep_their_rows(tmp_path: Path, sources: Path, status: str) -> None:
    suite = Suite(tmp_path / "results")
    suite.result |= {"status": status, "message": "why"}
    assert suite.run()["one"] == f"{status}, 1 rows, 60 s\nwhy"
    assert Store(tmp_path / "results").rows("one") == [{"us": 1.0}]
    suite.run()
    assert len(suite.ran) == 2


def test_a_crash_without_rows_does_not_replace_older_figures(tmp_path: Path, sources: Path) -> None:
    suite = Suite(tmp_path / "results")
    suite.run()
    suite.result = {"status": "failed", "rows": [], "message": "CUDA error"}
    suite.run(again=True)
    assert Store(tmp_path / "results").rows("one") == [{"us": 1.0}]


def test_the_budget_ends_the_run_and_names_what_it_left_out(tmp_path: Path, sources: Path) -> None:
    suite = Suite(tmp_path)
    became = suite.run(budget=90)
    assert suite.ran == [("one", 90), ("two", 30)]
    assert became["two"].startswith("done")
    suite.now = 0
    became = suite.run(budget=65, again=True)
    assert suite.ran == [("one", 65)]
    assert became["two"] == "not run: 5 s are left and it needs 10"


def test_a_part_gets_no_more_than_its_own_limit(tmp_path: Path, sources: Path) -> None:
    suite = Suite(tmp_path)
    suite.run(one={"limit": 20.0})
    assert suite.ran[0] == ("one", 20)


def test_a_part_whose_module_is_missing_is_not_run(tmp_path: Path, sources: Path) -> None:
    suite = Suite(tmp_path)
    became = suite.run(one={"needs": "no_such_module"})
    assert became["one"] == "not run: no_such_module is not installed"
    assert [name for name, _ in suite.ran] == ["two"]


@on_cpu
def test_a_part_runs_in_its_own_process_and_its_rows_come_back() -> None:
    bandwidth = parts.PARTS[0]
    result = runner.run_part(bandwidth, 120)
    assert result["status"] == "done", result["message"]
    assert [row["what"] for row in result["rows"]] == ["copy", "read", "bf16 product"]
    stopped = runner.run_part(bandwidth, 0.01)
    assert (stopped["status"], stopped["rows"]) == ("stopped", [])
    failed = runner.run_part(replace(bandwidth, name="nothing"), 120)
    assert failed["status"] == "failed"
    assert "invalid choice: 'nothing'" in failed["message"]


def test_a_folder_per_gpu() -> None:
    assert machine.slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"


# Floors, against numbers worked out by hand.


def test_the_floor_of_attention() -> None:
    """2 requests, 100 tokens before 5 rows, 8 heads of 64 on 2 of keys."""
    work = ceilings.attention(2, 100, 5, heads=8, kv_heads=2, head_size=64)
    keys_and_values = 2 * 105 * 2 * 64 * 2
    queries_and_results = 2 * 5 * 8 * 64 * 2
    assert work.bytes == 2 * (keys_and_values + queries_and_results) == 128000
    assert work.flops == 2 * 5 * 105 * 8 * 64 * 2 * 2 == 2150400


def test_the_floor_of_llama_3_8bs_fusion_is_that_of_its_weights() -> None:
    work = ceilings.fusion(1, hidden=4096, inner=14336)
    weights = 4096 * 8192 + 14336 * 8192 + 4096 * 14336
    assert weights == 209715200
    assert work.bytes == 2 * (weights + 3 * 4096 + 3 * 4096)
    assert work.flops == 2 * weights


def test_the_larger_of_two_floors_counts() -> None:
    measured = ceilings.Ceilings(bytes_per_us=3e6, flops_per_us=8e8)
    by_bytes, by_products = ceilings.Work(6_000_000, 8_000_000), ceilings.Work(3_000_000, 4_000_000_000)
    assert measured.floor_us(by_bytes) == 2
    assert measured.floor_us(by_products) == 5
    assert measured.shares(by_products, 10) == {"bandwidth_share": 0.1, "floor_us": 5, "floor_share": 0.5}


def test_kernels_are_used_up_to_where_they_lose_first() -> None:
    fused, library = {1: 10.0, 8: 11.0, 16: 14.0, 32: 12.0}, {1: 12.0, 8: 12.0, 16: 13.0, 32: 13.0}
    assert fusion.fused_up_to(fused, library) == 8
    assert fusion.fused_up_to({1: 13.0}, library) == 0
    assert fusion.fused_up_to({}, library) == 0


def test_busy_time_counts_what_runs_side_by_side_once() -> None:
    events = [("a", 0, 2_000_000), ("b", 1_000_000, 2_000_000), ("a", 7_000_000, 1_000_000), ("c", 7_100_000, 100_000)]
    found = engine.busy(events, steps=2, step_ms=4.0)
    assert found["gpu_busy_ms"] == 2.0
    assert found["gpu_idle_ms"] == 2.0
    assert found["gpu_idle_share"] == 0.5
    assert found["launches_per_step"] == 2
    assert found["kernels"][0] == {"name": "a", "ms_per_step": 1.5, "per_step": 1.0}


# The inputs, and what runs on them.


@on_cpu
def test_all_implementations_are_given_the_same_problem() -> None:
    problem = Problem(SMALL, torch.float32)
    ours = attention_peers.ours(problem)().clone()
    torch.testing.assert_close(attention_peers.sdpa(problem, SDPBackend.MATH)(), ours)
    assert problem.mask.sum(dim=2).min() == SMALL.context + 1
    problem.mask[0, -1, 3] ^= True
    assert attention.difference(attention_peers.sdpa(problem, SDPBackend.MATH)(), ours) > 1e-3


@on_cpu
def test_attention_rows_name_what_is_missing_and_compare_what_is_there() -> None:
    rows = {row["implementation"]: row for row in attention.rows([SMALL])}
    assert rows.keys() == {*attention_peers.TREES, *attention_peers.CAUSAL}
    assert rows["ours"]["wrong"] is False
    assert rows["ours"]["difference"] < 1e-2
    assert "skipped" in rows["SDPA cuDNN"]
    json.dumps(list(rows.values()))


@on_cpu
def test_a_wrong_result_is_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def spoilt(problem: Problem) -> attention_peers.Call:
        return lambda: torch.full_like(problem.query, math.nan)

    monkeypatch.setitem(attention_peers.TREES, "ours", spoilt)
    assert next(row for row in attention.rows([SMALL]) if row["implementation"] == "ours")["wrong"] is True


@on_cpu
def test_tiles_are_tried_beside_the_kernels_own_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    from vllm_specext.kernels.tree_attention import kernel

    launched = []
    monkeypatch.setattr(kernel, "num_runs", lambda *args: 9)
    monkeypatch.setattr(kernel, "tree_attention", lambda *args, **options: launched.append(options))
    rows = list(attention.tile_rows([SMALL], [(64, 32, 4, 3)], [1, 4]))
    assert SMALL.requests == 2
    assert [(row["tile"], row["block_n"], row["splits"]) for row in rows] == [
        ("as chosen", 64, 4),
        ("tried", 32, 1),
        ("tried", 32, 4),
    ]
    assert {(options["tile"].block_n, options["runs"]) for options in launched} == {(64, 9), (32, 1), (32, 8)}
    assert not any("skipped" in row for row in rows)


@on_cpu
def test_small_kernels_agree_with_torch_and_are_timed() -> None:
    rows = [*small_kernels.compaction_rows((2,), 2), *small_kernels.rows((2,), 2)]
    assert len(rows) == 14
    assert not any(row["wrong"] or "skipped" in row for row in rows)


def test_random_trees_have_parents_before_children() -> None:
    trees = random_trees(3, 20, torch.Generator().manual_seed(1))
    assert bool((trees.parents[:, 1:] < torch.arange(1, 21)).all())
    assert trees.depths.max() > 2


def test_a_hollow_checkpoint_has_the_shapes_and_no_weights(tmp_path: Path) -> None:
    dummy_models.write(tmp_path, dummy_models.LLAMA_3_8B, "bfloat16")
    shape = read_shape(tmp_path / "griffin")
    assert (shape.hidden_size, shape.tgf_size, shape.vocab_size) == (4096, 14336, 128256)
    on_disk = (tmp_path / "griffin" / "model.safetensors").stat().st_blocks * 512
    assert on_disk < 1 << 20


@pytest.mark.parametrize(("rate", "accepted"), [(1.0, 3), (0.0, 0)])
def test_synthetic_acceptance_takes_the_best_path_as_deep_as_told(rate: float, accepted: int) -> None:
    """Two requests; the first children are nodes 1, 3 and 5."""
    parents = torch.tensor([[0, 0, 0, 1, 1, 3]] * 2)
    drafted, drawn = torch.arange(12), torch.full((12,), -5)
    starts = torch.tensor([0, 6, 12])
    told = synthetic.Acceptance(rate).draws(drawn, drafted, starts, parents, levels=3)
    _, num_sampled, path = accept_tree(told, drafted, starts, parents, 3)
    assert (num_sampled - 1).tolist() == [accepted] * 2
    if accepted:
        assert path.tolist() == [[0, 1, 3, 5]] * 2


def test_synthetic_acceptance_waits_for_the_first_tree() -> None:
    drawn, drafted, starts = torch.full((6,), -5), torch.arange(6), torch.tensor([0, 6])
    chain = torch.tensor([[0, 0, 1, 2, 3, 4]])
    acceptance = synthetic.Acceptance(1.0)
    assert torch.equal(acceptance.draws(drawn, drafted, starts, chain, levels=3), drawn)
    assert acceptance.draws(drawn, drafted, starts, chain, levels=5).tolist() == [1, 2, 3, 4, 5, -5]


def test_graphs_are_captured_for_the_rows_that_steps_have() -> None:
    assert engine.captured((1, 4), 60) == [1, 4, 61, 244]
    assert engine.captured((1, 4), 0) == [1, 4]


def test_assumed_rates_are_those_of_chains_of_that_acceptance() -> None:
    assert synthetic.unconditional(0.5, 3) == [0.5, 0.25, 0.125]
    assert synthetic.tokens_per_step([0.5, 0.25, 0.125]) == 1.875


def test_pytests_report_is_counted_and_a_run_without_tests_is_wrong() -> None:
    text = """<testsuites><testsuite>
      <testcase classname="kernels.test_a" name="good"/>
      <testcase classname="kernels.test_a" name="bad"><failure message="off by one"/></testcase>
      <testcase classname="kernels.test_b" name="other"><skipped/></testcase>
    </testsuite></testsuites>"""
    a, b, failure = correctness.counted(ElementTree.ElementTree(ElementTree.fromstring(text)))
    assert a == {"file": "test_a", "passed": 1, "failed": 1, "skipped_tests": 0, "wrong": True}
    assert b["wrong"]  # skipped on a GPU is not tested on a GPU
    assert failure == {"file": "failure", "test": "bad", "message": "off by one", "wrong": True}
    empty = ElementTree.ElementTree(ElementTree.fromstring("<testsuites/>"))
    assert [row["wrong"] for row in correctness.counted(empty)] == [True]


# The report, from made-up results.


def made_up() -> dict[str, list[dict[str, Any]]]:
    timed = {"us": 12.5, "low_us": 12.0, "high_us": 13.0, "how": "graph"}
    shares = {"bandwidth_share": 0.71, "floor_us": 8.9, "floor_share": 0.71}
    shapes = [{"requests": requests, "context": 8192, "nodes": 60} for requests in (1, 8)]
    tile = {"tile": "tried", "block_m": 64, "block_n": 64, "warps": 4, "stages": 3, "splits": 4}
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
            {**shapes[0], "splits": 8, "tile": "as chosen", **timed, **shares},
            *({**shapes[0], **tile, **timed, **shares, "us": us} for us in (9.0, 20.0, 11.0, 10.0)),
        ],
        "engine:plain": [{"method": "plain", "requests": batch, "step_ms": 8.0, **step} for batch in (1, 4)],
        "engine:griffin-tree-60": [
            {"method": "griffin-tree-60", "requests": batch, "step_ms": 12.0, "kernels": [{"name": "k"}], **step}
            for batch in (1, 4)
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
    for text in ("tree_attention", "griffin-tree-60", "not installed", "FUSED_UP_TO_ROWS"):
        assert text in shown
    files = sorted(path.name for path in store.folder.iterdir())
    plots = ["compaction_small_kernels.png", "engine.png", "tgf.png", "tree_attention.png"]
    assert files == sorted(["suite.csv", "suite.json", *plots])
    assert len(files) <= 8


def test_without_matplotlib_there_are_tables_and_a_sentence(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "find_spec", lambda name: None)
    console = Console(width=200, record=True, file=io.StringIO())
    command_line.summarise(console, store, {})
    assert "no matplotlib" in console.export_text()
    assert not list(store.folder.glob("*.png"))


def test_a_wrong_row_and_a_failed_part_give_status_1(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "plots", lambda store: [])
    console = Console(file=io.StringIO())
    assert command_line.summarise(console, store, {"bandwidth": "failed, 0 rows, 3 s"}) == 1
    assert command_line.summarise(console, store, {"bandwidth": "stopped, 0 rows, 3 s"}) == 0
    rows = [{"file": "failure", "test": "bad", "message": "", "wrong": True}]
    store.keep("correctness", {"status": "done", "rows": rows, "key": {}}, [])
    assert command_line.summarise(console, store, {"correctness": "done, 1 rows, 3 s"}) == 1


def test_methods_are_compared_with_plain_decoding(store: Store) -> None:
    rows = [row for row in report.engine_rows(store) if row["method"] == "griffin-tree-60"]
    assert [row["faster_from"] for row in rows] == [1.5, 1.5]


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
    assert list(json.loads((store.folder / "suite.json").read_text())["parts"]) == list(made_up())
