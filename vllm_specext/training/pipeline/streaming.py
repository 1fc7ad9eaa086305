"""A training beside its target: the process that computes features, and the rows that wait for them."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from vllm_specext.training.data.folder import read_data
from vllm_specext.training.data.row import Row
from vllm_specext.training.pipeline.devices import VARIABLE, visible_devices
from vllm_specext.training.pipeline.folder import DATA, FEATURES
from vllm_specext.training.pipeline.record import Record
from vllm_specext.training.pipeline.settings import RunSettings
from vllm_specext.training.streaming.ring import POLL, Ring
from vllm_specext.training.streaming.streamed_rows import StreamedRows
from vllm_specext.training.streaming.visits import Visits

MODULE = "vllm_specext.target_stages.stream"
END_WITHIN = 30.0
"""Seconds that the target's process has to end."""
LAUNCHERS = ("RANK", "LOCAL_", "WORLD_SIZE", "GROUP_", "ROLE_", "MASTER_", "TORCHELASTIC_")
"""What variables of torch's launcher begin with. They are the training's, and no engine's."""


def visits_of(rows: Sequence[Row], settings: RunSettings) -> Visits:
    """What a training by ``settings`` needs of its ``rows``, and when."""
    return Visits([len(row) for row in rows], settings.recipe.tokens_per_step, settings.recipe.seed)


@contextmanager
def streamed_rows(folder: Path, record: Record, process: int) -> Iterator[StreamedRows]:
    """The rows of the run in ``folder``, for training process ``process``. The first one has the target's process while
    this lasts."""
    ring = Ring(folder / FEATURES / f"stream-{_launch()}")
    rows = list(read_data(folder / DATA, "train"))
    keys = [row.key for row in rows]
    source = StreamedRows(visits_of(rows, record.settings), keys, ring, process, record.target_hash)
    if process:
        yield source
        return
    for old in (folder / FEATURES).glob("stream-*"):
        shutil.rmtree(old)
    with ring.held() as alive:
        target = _start(folder, ring, record.processes, alive)
    try:
        yield source
    finally:
        _end(target)
        shutil.rmtree(ring.folder)


def _start(folder: Path, ring: Ring, processes: int, alive: int) -> "subprocess.Popen[bytes]":
    environment = {name: value for name, value in os.environ.items() if not name.startswith(LAUNCHERS)}
    if torch.cuda.is_available():
        devices = visible_devices(torch.cuda.device_count())
        environment[VARIABLE] = ",".join(devices[processes:])
    return subprocess.Popen(
        [sys.executable, "-m", MODULE, str(folder), str(ring.folder)],
        stdin=subprocess.DEVNULL,
        env=environment,
        pass_fds=(alive,),
    )


def _end(target: "subprocess.Popen[bytes]") -> None:
    target.terminate()
    until = time.monotonic() + END_WITHIN
    while target.poll() is None and time.monotonic() < until:
        time.sleep(POLL)
    target.kill()
    target.wait()


def _launch() -> str:
    """The same for all processes of this training, and for no other training."""
    return os.environ.get("TORCHELASTIC_RUN_ID") or str(os.getpid())
