"""Parts of the GPU suite that start side by side and are measured alone."""

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu_suite import gate, parts, runner
from benchmarks.gpu_suite.part_process import PartProcess
from benchmarks.gpu_suite.store import Store

START, MEASURE = 50.0, 20.0
ENGINES = ("first", "second", "third")


class Suite:
    """Engines that are ready after ``START`` seconds by a clock of their own, among other parts."""

    def __init__(self, folder: Path) -> None:
        self.store, self.now = Store(folder), 0.0
        self.happened: list[str] = []
        self.starting: dict[str, float] = {}
        """The time from which on each is ready, of those that wait or start."""
        self.hanging: set[str] = set()

    def run(self, *made: parts.Part, together: int = 2, budget: float = 1000.0) -> dict[str, str]:
        return runner.run_all(
            made,
            self.store,
            {},
            budget=budget,
            again=False,
            order=[],
            tell=lambda text: None,
            together=together,
            start=lambda part: Process(self, part),
            clock=lambda: self.now,
            pause=self.pause,
        )

    def pause(self, seconds: float) -> None:
        self.now += seconds


class Process:
    def __init__(self, suite: Suite, part: parts.Part) -> None:
        self.suite, self.part = suite, part
        suite.happened.append(f"start {part.name}")
        never = part.name in suite.hanging
        if part.starts_slowly:
            suite.starting[part.name] = float("inf") if never else suite.now + START

    def is_ready(self) -> bool:
        return self.suite.now >= self.suite.starting.get(self.part.name, 0)

    def measure(self, seconds: float) -> dict[str, Any]:
        suite = self.suite
        suite.starting.pop(self.part.name, None)
        if self.part.is_timed:
            assert all(suite.now >= ready for ready in suite.starting.values()), "another part is starting"
        suite.happened.append(f"measure {self.part.name}")
        suite.now += MEASURE
        return {"status": "done", "seconds": MEASURE, "rows": [{}], "message": ""}

    def end(self) -> None:
        self.suite.starting.pop(self.part.name, None)
        self.suite.happened.append(f"end {self.part.name}")


def part(name: str, **changes: Any) -> parts.Part:
    return parts.Part(name, "about it", "", "", least=10, limit=100, sources=(), **changes)


def engine(name: str) -> parts.Part:
    return part(name, starts_slowly=True)


def test_engines_start_side_by_side_and_are_measured_one_after_another(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    became = suite.run(*map(engine, ENGINES))
    assert suite.happened == [
        *("start first", "start second", "measure first", "measure second"),
        *("start third", "measure third"),
    ]
    assert list(became) == list(ENGINES)
    assert suite.now == pytest.approx(2 * START + 3 * MEASURE, abs=1)


def test_engines_start_while_parts_run_that_time_nothing(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    suite.run(part("tokens", is_timed=False), part("tests", is_timed=False), *map(engine, ENGINES[:2]))
    assert suite.happened[:3] == ["start first", "start second", "start tokens"]
    assert suite.now == pytest.approx(START + 2 * MEASURE, abs=1)


def test_no_engine_starts_beside_figures_that_it_would_spoil(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    suite.run(engine("first"), part("kernels"), engine("second"))
    assert suite.happened[::2] == ["start first", "start kernels", "start second"]


def test_one_at_a_time_where_the_memory_holds_no_more(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    suite.run(*map(engine, ENGINES), together=1)
    assert suite.happened == [what for name in ENGINES for what in (f"start {name}", f"measure {name}")]


def test_an_engine_that_does_not_get_ready_is_ended_before_others_are_measured(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    suite.hanging.add("second")
    suite.run(engine("first"), engine("second"))
    assert suite.happened[2:4] == ["end second", "measure first"]
    assert suite.now >= runner.START_LIMIT


def test_no_process_outlives_the_suite(tmp_path: Path) -> None:
    suite = Suite(tmp_path)
    became = suite.run(*map(engine, ENGINES), together=3, budget=START + 2 * MEASURE + 5)
    assert became["third"].startswith("not run")
    assert suite.happened[-1] == "end third"


def test_a_process_says_that_it_is_ready_and_waits_at_its_gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "from benchmarks.gpu_suite import gate; gate.wait(); print('measured', flush=True)"
    process = PartProcess.__new__(PartProcess)
    monkeypatch.setenv(gate.VARIABLE, str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as started:
        process._gate, process._process = tmp_path, started
        end = time.monotonic() + 60
        while not process.is_ready() and time.monotonic() < end:
            time.sleep(gate.PAUSE)
        time.sleep(2 * gate.PAUSE)
        assert (tmp_path / gate.READY).exists()
        assert started.poll() is None
        (tmp_path / gate.OPEN).touch()
        assert started.communicate(timeout=60)[0] == "measured\n"


def test_a_process_ends_with_a_suite_that_is_killed(tmp_path: Path) -> None:
    own = "from benchmarks.gpu_suite.part_process import end_with_suite as end; end()"
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nexec {sys.executable} -c '{own}; import time; time.sleep(600)'\n")
    script.chmod(0o700)
    program = f"""
import os, signal, sys
from benchmarks.gpu_suite import parts
from benchmarks.gpu_suite.part_process import PartProcess

sys.executable = {str(script)!r}
print(PartProcess(parts.PARTS[0])._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    suite = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, timeout=60, check=False)
    assert suite.returncode == -signal.SIGKILL
    end = time.monotonic() + 60
    while (still := is_running(int(suite.stdout))) and time.monotonic() < end:
        time.sleep(gate.PAUSE)
    assert not still


def is_running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_without_a_suite_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(gate.VARIABLE, raising=False)
    gate.wait()


INTERRUPTS = """#!/bin/sh
for rows; do :; done  # the last argument
echo '{"us": 1.0}' > "$rows"
for turn in $(seq 600); do [ -e "$GPU_SUITE_GATE/open" ] && break; sleep 0.05; done
sleep 0.5
[ -e "$GPU_SUITE_GATE/open" ] && kill -TERM $PPID
sleep 600
"""
"""A part whose suite is told to end while it waits for it."""


def test_an_interrupted_part_leaves_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "python"
    script.write_text(INTERRUPTS)
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        result = PartProcess(parts.PARTS[0]).measure(60)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert (result["status"], result["rows"]) == ("interrupted", [{"us": 1.0}])
