"""Suggestions come from a process that is never waited for and never outlives the engine."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from vllm_specext.methods.swift.search.bayes import suggest
from vllm_specext.methods.swift.search.search import Observation
from vllm_specext.methods.swift.search.skip_set import SkipSet, num_variables
from vllm_specext.methods.swift.search.suggestion import BayesianSuggester

LAYERS, SKIPPED = 8, 5
HARMLESS = {0, 2, 3, 7, 11}
"""Variables that may be skipped without loss."""

PATIENCE = 120
"""Seconds that a busy machine may take."""


def observed(count: int, seed: int = 0) -> list[Observation]:
    rng = random.Random(seed)
    drawn = [SkipSet.of(LAYERS, rng.sample(range(num_variables(LAYERS)), SKIPPED)) for _ in range(count)]
    return [(skipped, len(HARMLESS & set(skipped.variables)) / SKIPPED) for skipped in drawn]


def in_process(observations: list[Observation], seed: int) -> SkipSet:
    variables = range(num_variables(LAYERS))
    points = [[int(variable in skipped.variables) for variable in variables] for skipped, _ in observations]
    return SkipSet.of(LAYERS, suggest(points, [score for _, score in observations], SKIPPED, seed))


def wait_for(happened: Callable[[], bool]) -> bool:
    end = time.monotonic() + PATIENCE
    while not happened():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def wait_for_suggestion(suggester: BayesianSuggester) -> SkipSet | None:
    found: list[SkipSet] = []
    wait_for(lambda: found.extend(filter(None, [suggester.ready()])) or bool(found))
    return found[0] if found else None


def is_alive(pid: int) -> bool:
    """Running, and not only waiting to be reaped."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.fixture
def suggester() -> Iterator[BayesianSuggester]:
    made = BayesianSuggester(LAYERS, SKIPPED, seed=3)
    yield made
    made.close()


@pytest.fixture
def no_waiting() -> Iterator[None]:
    """A call that waits ends with an error instead of never."""

    def interrupt(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_a_suggestion_finds_what_the_observations_say() -> None:
    observations = observed(60)
    suggestion = in_process(observations, seed=1)
    assert len(suggestion) == SKIPPED
    assert len(HARMLESS & set(suggestion.variables)) >= 4
    # Not because of the variables' order: with the scores turned round it avoids them.
    opposite = in_process([(skipped, 1 - score) for skipped, score in observations], seed=1)
    assert len(HARMLESS & set(opposite.variables)) <= 1


def test_the_process_suggests_what_follows_from_observations_and_seed(suggester: BayesianSuggester) -> None:
    first, second = observed(12), observed(20, seed=1)
    found = []
    for observations in (first, second):
        suggester.ask(observations)
        suggester.ask(observed(3, seed=9))  # one is under way: nothing happens
        found.append(wait_for_suggestion(suggester))
        assert suggester.ready() is None
    assert found == [in_process(first, seed=3), in_process(second, seed=4)]


@pytest.mark.usefixtures("no_waiting")
def test_a_process_that_hangs_is_not_waited_for(suggester: BayesianSuggester) -> None:
    suggester.start()
    assert suggester.pid is not None
    os.kill(suggester.pid, signal.SIGSTOP)
    # More than a target of 80 layers will ever send.
    large = BayesianSuggester(80, 78)
    large._process, large._end = suggester._process, suggester._end
    large.ask([(SkipSet.of(80, random.Random(seed).sample(range(156), 78)), seed / 301) for seed in range(300)])
    assert large.ready() is None
    large.ask([(SkipSet.uniform(80), 0.5)])
    assert large.ready() is None
    pid = suggester.pid
    suggester.close()
    assert not is_alive(pid)


def kill(suggester: BayesianSuggester) -> None:
    assert suggester.pid is not None
    os.kill(suggester.pid, signal.SIGKILL)


def test_a_process_that_died_at_a_suggestion_is_started_again(
    suggester: BayesianSuggester, caplog: pytest.LogCaptureFixture
) -> None:
    observations = observed(12)
    suggester.ask(observations)
    kill(suggester)
    assert wait_for(lambda: suggester.ready() is None and suggester.pid is None)
    suggester.ask(observations)
    assert suggester.pid is not None
    assert wait_for_suggestion(suggester) == in_process(observations, seed=4)
    assert "the search goes on at random" not in caplog.text


def test_a_process_that_died_between_two_suggestions_is_started_again(suggester: BayesianSuggester) -> None:
    observations = observed(12)
    suggester.start()
    dead = suggester.pid
    assert dead is not None
    kill(suggester)
    assert wait_for(lambda: not is_alive(dead))
    suggester.ask(observations)
    assert suggester.pid not in (None, dead)
    assert wait_for_suggestion(suggester) == in_process(observations, seed=3)


@pytest.mark.usefixtures("no_waiting")
def test_a_process_that_died_twice_ends_the_suggestions_and_nothing_else(
    suggester: BayesianSuggester, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        suggester.ask(observed(3))
        kill(suggester)
        assert wait_for(lambda: suggester.ready() is None and suggester.pid is None)
    for _ in range(2):
        suggester.ask(observed(3))
        assert suggester.ready() is None
    assert suggester.pid is None
    assert caplog.text.count("the search goes on at random") == 1


@pytest.mark.usefixtures("no_waiting")
def test_an_answer_in_pieces_is_read_up_to_its_end(suggester: BayesianSuggester) -> None:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    with os.fdopen(ours, "rb", buffering=0) as answers, os.fdopen(theirs, "wb", buffering=0) as pieces:
        suggester.start()
        assert suggester._process is not None
        suggester.ask(observed(3))
        assert suggester._process.stdout is not None
        suggester._process.stdout.close()
        suggester._process.stdout = answers
        for piece in (b"[1, 2, 1", b"0]", b"\n"):
            assert suggester.ready() is None
            pieces.write(piece)
        assert suggester.ready() == SkipSet.of(LAYERS, [1, 2, 10])
        suggester.close()


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_answer_is_one_write(unbuffered: str) -> None:
    """A socket of packets tells writes apart."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    request = {"variables": 4, "skipped": 2, "seed": 1, "points": ["3", "5"], "scores": [0.1, 0.2]}
    program = [sys.executable, "-m", "vllm_specext.methods.swift.search.suggestion_process", str(os.getpid())]
    with ours, theirs:
        ours.settimeout(PATIENCE)
        subprocess.run(
            program,
            input=json.dumps(request).encode() + b"\n",
            stdout=theirs,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            check=True,
        )
        first = ours.recv(1 << 16)
    assert first.endswith(b"\n")
    assert len(json.loads(first)) == 2


def test_no_observations_start_no_suggestion(suggester: BayesianSuggester) -> None:
    suggester.ask([])
    assert suggester.ready() is None
    assert suggester.pid is None


ENGINE = """
import os, signal, time
from vllm_specext.methods.swift.search.skip_set import SkipSet
from vllm_specext.methods.swift.search.suggestion import BayesianSuggester
suggester = BayesianSuggester(8, 5)
suggester.ask([(SkipSet.uniform(8), 0.5)] * 300)
print(suggester.pid, flush=True)
{end}
"""


@pytest.mark.parametrize("end", ["", "os.kill(os.getpid(), signal.SIGKILL)", "os._exit(1)"])
def test_the_process_ends_with_its_parent_however_that_ends(end: str) -> None:
    done = subprocess.run([sys.executable, "-c", ENGINE.format(end=end)], stdout=subprocess.PIPE, check=False)
    pid = int(done.stdout)
    assert wait_for(lambda: not is_alive(pid))
