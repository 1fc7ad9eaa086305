"""Stages in processes of their own: what they say, how they end, signals, and what else they print."""

import os
import signal
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from vllm_specext.training.pipeline.launcher import Ended, module_command, run_process, threads_of_each
from vllm_specext.training.pipeline.stage_process import DONE, INTERRUPTED, REFUSED, TRANSIENT

BEGIN = """
import os, sys, time
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.pipeline.stage_process import end_on_sigterm, run_stage
def work(folder, say):
"""


class Stage:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.said: list[str] = []

    def run(self, body: str, environment: dict[str, str] | None = None) -> Ended:
        program = BEGIN + textwrap.indent(textwrap.dedent(body), "    ") + "\nrun_stage(work)\n"
        command = [sys.executable, "-c", program, str(self.folder)]
        return run_process(command, self.folder / "logs" / "stage.log", self.said.append, environment=environment)

    @property
    def log(self) -> str:
        return (self.folder / "logs" / "stage.log").read_text()


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    return Stage(tmp_path)


def test_what_a_stage_says_is_shown_and_what_it_prints_is_in_the_log(stage: Stage) -> None:
    ended = stage.run("print('a library'); os.system('echo a program'); say(f'in {folder.name}')")
    assert ended == Ended(DONE)
    assert stage.said == [f"in {stage.folder.name}"]
    assert "a library" in stage.log
    assert "a program" in stage.log


def test_a_refusal_is_a_sentence_and_no_traceback(stage: Stage) -> None:
    assert stage.run("raise ConfigurationError('no.')") == Ended(REFUSED, "no.")
    assert "Traceback" not in stage.log


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ("raise OSError(28, 'No space left on device')", TRANSIENT),
        ("from safetensors import SafetensorError; raise SafetensorError('I/O error')", TRANSIENT),
        ("raise RuntimeError('a mistake')", TRANSIENT),
        ("os.kill(os.getpid(), 9)", TRANSIENT),
        ("sys.exit(3)", INTERRUPTED),
    ],
)
def test_every_other_end_has_its_status(body: str, status: int, stage: Stage) -> None:
    assert stage.run(body) == Ended(status)


def test_a_mistake_has_its_traceback_in_the_log(stage: Stage) -> None:
    stage.run("raise RuntimeError('a mistake')")
    assert "RuntimeError: a mistake" in stage.log


def test_a_full_disk_is_said(stage: Stage) -> None:
    stage.run("raise OSError(28, 'No space left on device')")
    stage.run("from safetensors import SafetensorError; raise SafetensorError('I/O error: no space')")
    assert stage.said == [
        "the system refused a file: No space left on device",
        "the system refused a file: I/O error: no space",
    ]


def test_of_several_processes_the_first_alone_speaks_but_each_can_refuse(stage: Stage) -> None:
    assert stage.run("say('twice')\nraise ConfigurationError('no.')", {"RANK": "1"}) == Ended(REFUSED, "no.")
    assert stage.said == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_stage_as_interrupted(number: signal.Signals, stage: Stage) -> None:
    def send() -> None:
        while not stage.said:
            time.sleep(0.05)
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    sender = threading.Thread(target=send)
    sender.start()
    ended = stage.run("end_on_sigterm()\nsay('begun')\ntime.sleep(60)")
    sender.join()
    assert ended == Ended(INTERRUPTED)
    assert signal.getsignal(number) is before


def test_one_process_needs_no_launcher() -> None:
    folder = Path("run")
    assert module_command("a.b", folder)[1:] == ["-m", "a.b", "run"]
    assert module_command("a.b", folder, 2)[2:5] == ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]


def test_processes_share_the_cores_unless_the_user_says_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(9)))
    assert [threads_of_each(processes) for processes in (1, 2, 32)] == [
        {},
        {"OMP_NUM_THREADS": "4"},
        {"OMP_NUM_THREADS": "1"},
    ]
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert threads_of_each(2) == {}
