"""What others take of the processor cores, apart from what this process and its children take."""

import subprocess
import sys
import time

import pytest

from vllm_specext.measure import others
from vllm_specext.measure.others import Look, Others, is_busy, share


def test_the_share_is_that_of_the_others_alone() -> None:
    before = Look(clock=10.0, all=100.0, own=40.0)
    assert share(before, Look(12.0, 103.0, 42.0), cores=2) == 0.25
    assert share(before, Look(12.0, 103.0, 43.0), cores=2) == 0
    # Counters of the machine and of processes are not read at the same moment.
    assert share(before, Look(12.0, 103.0, 44.0), cores=2) == 0
    assert share(before, Look(12.0, 110.0, 40.0), cores=2) == 1


@pytest.mark.parametrize(("at_start", "meanwhile", "busy"), [(0.02, 0.05, False), (0.4, 0.05, True), (0.02, 0.4, True)])
def test_a_machine_is_busy_where_it_was_before_or_meanwhile(at_start: float, meanwhile: float, busy: bool) -> None:
    assert is_busy({"at_start": at_start, "while_measuring": meanwhile, "highest": 0.9}) == busy


def test_looks_are_taken_while_it_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([Look(0, 0, 0), Look(1, 0.5, 0), *(Look(2 + n, 0.5 + n, 0) for n in range(1000))])
    monkeypatch.setattr(others, "look", lambda cores: next(looks))
    monkeypatch.setattr(others, "AT_START", 0)
    monkeypatch.setattr(others, "EVERY", 0.01)
    monkeypatch.setattr(others.os, "sched_getaffinity", lambda _: {0, 1})
    with Others() as watch:
        time.sleep(0.2)
    told = watch.told()
    assert told["at_start"] == 0.25
    assert 0 < told["while_measuring"] <= told["highest"] == 0.5


def test_a_childs_work_is_own_also_after_its_end() -> None:
    program = "import time\nend = time.process_time() + 0.4\nwhile time.process_time() < end: pass"
    cores = frozenset(others.os.sched_getaffinity(0))
    before = others.look(cores)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = others.look(cores)
    assert after.own - before.own > 0.35
    assert after.all - before.all > 0.3
