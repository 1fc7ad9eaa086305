"""The command's side of a stage: it starts the process, shows what that says, hands signals on, and tells its end."""

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specext.training.pipeline.stage_process import DONE, INTERRUPTED, REFUSAL, REFUSED, SAY, TRANSIENT

ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # an engine is in the stage's own process, and ends with it
    "VLLM_NO_USAGE_STATS": "1",
    "PYTHONUNBUFFERED": "1",
    "TOKENIZERS_PARALLELISM": "false",
    # Of torch's launcher, which kills processes 30 s after a signal: a measurement or a large state may take longer.
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "600"),
}
POLL = 1.0
"""Seconds from one look at what a stage writes to the next."""

Watch = Callable[[], Sequence[str]]
"""What is new since it was asked last, in lines for the user."""


@dataclass(frozen=True)
class Ended:
    status: int
    sentence: str | None = None
    """Why it was refused."""


def module_command(module: str, folder: Path, processes: int = 1) -> list[str]:
    """The command that runs ``module`` on a run's ``folder``, in several processes by torch's own launcher."""
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"] if processes > 1 else []
    return [sys.executable, *launcher, "-m", module, str(folder)]


def threads_of_each(processes: int) -> dict[str, str]:
    """The environment in which so many ``processes`` share the cores, unless the user says otherwise. Torch's launcher
    gives each one thread, in which rows are put together more slowly than a GPU learns from them."""
    if processes == 1 or "OMP_NUM_THREADS" in os.environ:
        return {}
    return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // processes))}


def run_process(
    command: Sequence[str],
    log: Path,
    show: Callable[[str], None],
    *,
    lock: int | None = None,
    environment: Mapping[str, str] | None = None,
    watch: Watch = tuple,
) -> Ended:
    """Run ``command`` to its end. What it prints beside its own words is added to ``log``; ``lock`` is an open file
    that stays open as long as the process does."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as errors:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **ENVIRONMENT, **(environment or {})},
            pass_fds=() if lock is None else (lock,),
            start_new_session=True,  # a terminal's Ctrl-C reaches it by this process alone, and once
        )
    with _signals_to(process) as signals:
        sentence = _listen(process, show, watch)
        status = process.wait()
    if sentence is not None:
        return Ended(REFUSED, sentence)
    if signals and status != DONE:
        return Ended(INTERRUPTED)
    return Ended(status if status in (DONE, REFUSED, INTERRUPTED, TRANSIENT) else TRANSIENT)


def _listen(process: "subprocess.Popen[bytes]", show: Callable[[str], None], watch: Watch) -> str | None:
    """Show what the process says; the first sentence of a refusal."""
    assert process.stdout is not None
    descriptor, rest, sentence = process.stdout.fileno(), b"", None
    while True:
        ready, _, _ = select.select([descriptor], [], [], POLL)
        for line in watch():
            show(line)
        if not ready:
            continue
        piece = os.read(descriptor, 65536)
        *whole, rest = (rest + piece).split(b"\n")
        for said in map(_read, whole):
            if SAY in said:
                show(str(said[SAY]))
            elif REFUSAL in said and sentence is None:
                sentence = str(said[REFUSAL])
        if not piece:
            return sentence


def _read(line: bytes) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


@contextmanager
def _signals_to(process: "subprocess.Popen[bytes]") -> Iterator[list[int]]:
    """Hand SIGINT and SIGTERM on to the process as SIGTERM; those that came are listed."""
    came: list[int] = []

    def hand_on(number: int, _: object) -> None:
        came.append(number)
        process.send_signal(signal.SIGTERM)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
            process.wait()
