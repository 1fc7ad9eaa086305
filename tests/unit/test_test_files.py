"""What holds of the files of tests: one idea each, and run in an order in which two workers end together."""

from pathlib import Path

from tests.conftest import CHANGED, PROCESSOR_SECONDS, SERVERS, SHARED, longest_first, unit_of

ROOT = Path(__file__).parents[2]
MOST_LINES = 300


def test_no_file_of_tests_is_too_long() -> None:
    files = sorted((ROOT / "tests").rglob("*.py"))
    assert len(files) > 100
    lines = {str(file.relative_to(ROOT)): len(file.read_text(encoding="utf-8").splitlines()) for file in files}
    assert {file: count for file, count in lines.items() if count > MOST_LINES} == {}


def test_files_whose_time_is_known_are_there() -> None:
    assert [file for file in (PROCESSOR_SECONDS.keys() | SHARED.keys()) if not (ROOT / file).exists()] == []


def test_importing_the_tests_leaves_vllms_environment_alone() -> None:
    assert CHANGED == {}


def test_what_takes_longest_comes_first() -> None:
    short, long = "tests/unit/test_test_files.py", "tests/engine/test_foreign.py"
    longest = max(PROCESSOR_SECONDS.keys() - SHARED.keys(), key=lambda file: PROCESSOR_SECONDS[file])
    assert longest_first(f"{file}::test_x" for file in (short, long, longest)) == [longest, long, short]


def test_files_that_use_the_same_servers_go_to_one_worker() -> None:
    nodeids = [f"{file}::test_x[a::b]" for file in SHARED]
    assert {unit_of(nodeid) for nodeid in nodeids} == {SERVERS}
    assert longest_first([*nodeids, "tests/engine/test_foreign.py::test_x"])[0] == SERVERS
