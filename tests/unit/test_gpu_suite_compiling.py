"""The GPU suite compiles what it will time, and times nothing meanwhile."""

from importlib import import_module
from itertools import chain

import pytest

from benchmarks.gpu_suite import compiling
from benchmarks.gpu_suite.compiling import MEASURING, SHARES, Job, compile_first, jobs, run
from benchmarks.gpu_suite.parts import PARTS, chosen


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a process of its own would keep to itself."""
    for name in MEASURING:
        module = import_module(f"benchmarks.gpu_suite.{name}")
        monkeypatch.setattr(module, "measure", module.measure)
        monkeypatch.setattr(module, "copies_for", lambda size: 1, raising=False)


def test_every_part_that_times_kernels_is_compiled_first() -> None:
    timed = {part.name for part in PARTS if part.is_timed and not part.name.startswith("engine")}
    assert SHARES.keys() == timed - {"bandwidth"}


def test_what_takes_longest_is_begun_first_and_shares_are_all_there_is() -> None:
    listed = jobs(chosen(["tree_attention", "attention_tiles", "bandwidth"]))
    assert [job.everything for job in listed] == ["TILES"] * 5 + ["SHAPES"] * 8
    for job in listed:
        everything = getattr(import_module(f"benchmarks.gpu_suite.{job.module}"), job.everything)
        own = [everything[each.first :: each.of] for each in listed if each.everything == job.everything]
        assert sorted(map(repr, chain.from_iterable(own))) == sorted(map(repr, everything))


@pytest.mark.usefixtures("restored")
def test_a_share_is_called_once_and_its_error_is_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[int] = []
    small = import_module("benchmarks.gpu_suite.small_kernels")

    def rows(batches: tuple[int, ...]) -> list[int]:
        called.extend(batches)
        small.measure(lambda: called.append(99), lambda: called.append(100))
        return []

    monkeypatch.setattr(small, "rows", rows)
    monkeypatch.setattr(small, "BATCHES", (1, 8, 64))
    assert run(Job("small_kernels", "rows", "BATCHES", 1, 2)) is None
    assert called == [8, 99]
    monkeypatch.setattr(small, "rows", lambda batches: 1 / 0)
    assert (
        run(Job("small_kernels", "rows", "BATCHES", 0, 2)) == "small_kernels.rows: ZeroDivisionError: division by zero"
    )


@pytest.mark.usefixtures("restored")
def test_a_real_part_goes_through() -> None:
    assert run(Job("small_kernels", "compaction_rows", "BATCHES", 0, 3)) is None


def test_parts_without_kernels_start_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "get_context", None)
    said: list[str] = []
    compile_first(chosen(["bandwidth", "engine:plain"]), 5, said.append)
    assert said == []


def test_processes_end_in_time_and_say_how_many_did(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "jobs", lambda parts: [Job("small_kernels", "compaction_rows", "BATCHES", 0, 3)])
    said: list[str] = []
    compile_first(chosen(["compaction"]), 60, said.append)
    assert said[0] == "compiling in 1 processes"
    assert said[-1].startswith("compiled: 1 of 1 in ")
