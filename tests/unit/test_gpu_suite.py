"""The parts of the GPU suite without a GPU: which are run, again or not, for how long, and what is kept of them."""

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu_suite import __main__ as command_line
from benchmarks.gpu_suite import engine_methods, machine, parts, runner, timing
from benchmarks.gpu_suite.part_process import PartProcess
from benchmarks.gpu_suite.store import Store

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

        suite = self

        class Process:
            def __init__(self, which: parts.Part) -> None:
                self.name = which.name

            def is_ready(self) -> bool:
                return True

            def measure(self, seconds: float) -> dict[str, Any]:
                suite.ran.append((self.name, seconds))
                suite.now += 60
                return {"seconds": 60.0, **suite.result}

            def end(self) -> None:
                raise AssertionError("nothing starts ahead here")

        arguments: dict[str, Any] = {"budget": 1000.0, "again": False} | options
        described = arguments.pop("described", MACHINE)
        return runner.run_all(
            [part(name, **arguments.pop(name, {})) for name in names],
            Store(self.folder),
            described,
            **arguments,
            order=["one", "two"],
            tell=lambda text: None,
            start=Process,
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
    assert [each.arguments for each in parts.chosen(["engine"])] == [(name,) for name in engine_methods.METHODS]
    assert [each.name for each in parts.chosen(["tgf", "engine:plain"])] == ["engine:plain", "tgf"]


def test_what_is_wrong_comes_first_and_what_might_be_better_last() -> None:
    names = list(dict.fromkeys(part.name.split(":")[0] for part in parts.PARTS))
    first = ["correctness", *(f"lossless{kind}" for kind in ("", "_methods", "_hybrid", "_latent", "_eager")), "engine"]
    assert names[: len(first)] == first
    assert names[-2:] == ["attention_tiles", "tgf_tiles"]
    assert all(part.limit <= 480 for part in parts.PARTS)


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


def test_a_suite_that_is_interrupted_keeps_its_rows_and_goes_no_further(tmp_path: Path, sources: Path) -> None:
    suite = Suite(tmp_path / "results")
    suite.result |= {"status": "interrupted", "message": "why"}
    assert list(suite.run()) == ["one"]
    assert Store(tmp_path / "results").rows("one") == [{"us": 1.0}]


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
    bandwidth = parts.chosen(["bandwidth"])[0]
    result = PartProcess(bandwidth).measure(120)
    assert result["status"] == "done", result["message"]
    assert [row["what"] for row in result["rows"]] == ["copy", "read", "bf16 product"]
    stopped = PartProcess(bandwidth).measure(0.01)
    assert (stopped["status"], stopped["rows"]) == ("stopped", [])
    failed = PartProcess(replace(bandwidth, name="nothing")).measure(120)
    assert failed["status"] == "failed"
    assert "invalid choice: 'nothing'" in failed["message"]


def test_processes_side_by_side_have_one_thread_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\necho threads: $OMP_NUM_THREADS\nexit 1\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    for given, said in [(None, "1"), ("3", "3")]:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if given is not None:
            monkeypatch.setenv("OMP_NUM_THREADS", given)
        assert PartProcess(parts.PARTS[0]).measure(60)["message"] == f"threads: {said}"


def test_a_folder_per_gpu() -> None:
    assert machine.slug("NVIDIA H100 80GB HBM3") == "nvidia-h100-80gb-hbm3"
