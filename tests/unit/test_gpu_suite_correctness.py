"""The part of the GPU suite that runs the tests of the kernels."""

from pathlib import Path

import pytest

from benchmarks.gpu_suite import correctness

TESTS = {
    "test_one": """
        import pytest

        @pytest.mark.gpu
        @pytest.mark.parametrize("number", range(4))
        def test_numbers(number):
            assert number != 3, "off by one"

        def test_of_a_cpu():
            assert False
        """,
    "test_other": """
        import pytest

        @pytest.mark.gpu
        def test_good():
            pass

        @pytest.mark.gpu
        def test_left_out():
            pytest.skip("not here")
        """,
    "test_of_cpus": """
        def test_of_a_cpu():
            assert False
        """,
}


def write(folder: Path, tests: dict[str, str]) -> Path:
    for name, text in tests.items():
        lines = [line.removeprefix(" " * 8) for line in text.splitlines()]
        (folder / f"{name}.py").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("workers", [True, False])
def test_files_are_counted_and_failures_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: bool) -> None:
    if not workers:
        monkeypatch.setattr(correctness, "find_spec", lambda name: None)
    rows = [row for row in correctness.rows(write(tmp_path, TESTS)) if row.pop("seconds", 0.0) < 60]
    assert {"file": "test_one", "passed": 3, "failed": 1, "skipped_tests": 0, "wrong": True} in rows
    assert {"file": "test_other", "passed": 1, "failed": 0, "skipped_tests": 1, "wrong": False} in rows
    (failure,) = (row for row in rows if row["file"] == "failure")
    assert failure["test"] == "test_numbers[3]"
    assert "off by one" in failure["message"]
    assert len(rows) == 3


def test_a_file_that_cannot_be_imported_is_wrong_and_others_run(tmp_path: Path) -> None:
    rows = list(correctness.rows(write(tmp_path, TESTS | {"test_broken": "        import no_such_module"})))
    assert {"test_one", "test_other", "test_broken"} <= {row["file"] for row in rows}
    (broken,) = (row for row in rows if row["file"] == "test_broken")
    assert (broken["passed"], broken["wrong"]) == (0, True)


LAST = {
    "teardown": """
        import pytest

        @pytest.fixture
        def spoilt():
            yield
            raise ValueError("not cleaned up")

        @pytest.mark.gpu
        def test_good(spoilt):
            pass
        """,
    "worker": """
        import os

        import pytest

        @pytest.mark.gpu
        def test_good():
            os._exit(1)
        """,
}


@pytest.mark.parametrize(("last", "says"), [("teardown", "not cleaned up"), ("worker", "crashed")])
def test_a_test_has_ended_after_its_teardown_or_with_its_worker(tmp_path: Path, last: str, says: str) -> None:
    counted, failure = correctness.rows(write(tmp_path, {"test_last": LAST[last]}))
    assert counted.pop("seconds") < 60
    assert counted == {"file": "test_last", "passed": 0, "failed": 1, "skipped_tests": 0, "wrong": True}
    assert says in failure["message"]


BROKEN = """
        import pytest
        import torch

        @pytest.fixture(autouse=True, scope="session")
        def gpu():
            torch.cuda.is_initialized = lambda: True
            torch.cuda.synchronize = lambda: None

        @pytest.mark.gpu
        @pytest.mark.parametrize("number", range(6))
        def test_numbers(number):
            def refused():
                raise RuntimeError("CUDA error: an illegal memory access")

            if number == 2:
                torch.cuda.synchronize = refused
            torch.cuda.synchronize()
        """


@pytest.mark.parametrize("ends", [True, False])
def test_a_worker_that_can_use_its_gpu_no_more_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    """And another runs what is left. Control: where it goes on, all tests after the broken one fail."""
    monkeypatch.setattr(correctness, "MOST_WORKERS", 1)
    text = BROKEN if ends else BROKEN.replace("is_initialized = lambda: True", "is_initialized")
    write(tmp_path, {"test_gpu": text})
    counted, *failures = correctness.rows(tmp_path)
    assert (counted["passed"], counted["failed"]) == ((5, 1) if ends else (2, 4))
    assert failures[0]["test"] == "test_numbers[2]"
    assert "illegal memory access" in failures[0]["message"]


def test_what_needs_vllm_is_left_out_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = {"test": "tests/test_a.py", "outcome": "failed", "message": "No module named 'vllm'"}
    lines = [failed, {"tests": ["tests/test_b.py::test_x"]}, failed]
    lines.append({"test": "tests/test_b.py::test_x", "outcome": "passed", "message": ""})
    monkeypatch.setattr(correctness, "find_spec", lambda name: None)
    b, a = correctness.of_files(lines)
    assert a == {"file": "test_a", "skipped": "needs vllm"}
    assert (b["file"], b["wrong"]) == ("test_b", False)
    monkeypatch.undo()
    assert any(row["file"] == "test_a" and row["wrong"] for row in correctness.of_files(lines))


def test_a_file_is_told_as_soon_as_it_has_ended() -> None:
    tests = ["test_a.py::test_x", "test_b.py::test_x"]
    lines = iter([{"tests": tests}, {"test": tests[0], "outcome": "passed", "seconds": 1.5, "message": ""}])
    rows = correctness.of_files(lines)
    ended = {"file": "test_a", "passed": 1, "failed": 0, "skipped_tests": 0, "seconds": 1.5, "wrong": False}
    assert next(rows) == ended
    left = next(rows)
    assert (left["file"], left["wrong"], left["message"]) == ("test_b", True, "1 tests have not ended")


def test_tests_that_all_were_skipped_are_wrong() -> None:
    """What is skipped on a GPU is not tested on a GPU."""
    (row,) = correctness.of_files([{"tests": ["a::b"]}, {"test": "a::b", "outcome": "skipped", "message": ""}])
    assert row["wrong"]


def test_a_run_without_tests_is_wrong() -> None:
    assert [row["wrong"] for row in correctness.of_files([{"tests": []}])] == [True]
