"""The command that trains a drafter, as a user runs it, small enough for two cores."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.chats import write_chats
from tests.forks import Fork

_SMALL = """
warmup_steps = 2
tokens_per_step = 512
packs = 2
log_every = 8
bfloat16 = false
"""
RECIPE = f"""
steps = [24, 8, 8]
learning_rates = [8e-3, 4.8e-3, 4.8e-3]
mlp_size = 256
{_SMALL}"""
TWO_STAGES = f"""
steps = [24, 8]
learning_rates = [8e-3, 4.8e-3]
{_SMALL}"""
PROGRAM = "tests.e2e.forked_stages:main"
MODULE = "vllm_specext.training.pipeline.train"


class Training:
    """``vllm-specext train METHOD`` in ``folder / "run"``."""

    def __init__(
        self,
        folder: Path,
        target: Path,
        *options: str,
        method: str = "griffin",
        chats: int = 60,
        recipe: str = RECIPE,
    ) -> None:
        self.run_folder = folder / "run"
        write_chats(folder / "chats.jsonl", chats)
        (folder / "small.toml").write_text(recipe)
        self.arguments = [
            *("train", method, f"--target={target}"),
            *(f"--data={folder / 'chats.jsonl'}", f"--output={self.run_folder}", f"--recipe={folder / 'small.toml'}"),
            *("--max-length=160", "--dtype=float32", *options),
        ]
        self.output = folder / "output.txt"

    def start(self) -> Fork:
        self.output.unlink(missing_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        return Fork(PROGRAM, self.arguments, environment=environment, stdout=self.output, stderr=self.output)

    def run(self) -> tuple[int, str]:
        """Exit status, and all that was printed."""
        status = self.start().wait(900)
        return status, self.output.read_text()

    def read(self, name: str) -> Any:
        return json.loads((self.run_folder / name).read_text())

    def log(self) -> list[dict[str, Any]]:
        file = self.run_folder / "log.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    def logs(self) -> str:
        """The ends of the stages' logs, for a test that failed."""
        return "\n".join(f"{file}: {file.read_text()[-2000:]}" for file in sorted(self.run_folder.glob("logs/*")))


def wait_for(condition: Any, process: Fork, seconds: float = 600) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert process.poll() is None, "the command has ended"
        assert time.monotonic() < until
        time.sleep(0.2)


def training_processes(output: Path) -> Iterator[tuple[int, int]]:
    """Rank and id of each process that trains in ``output``."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes().split(b"\0")
        except OSError:
            continue
        ranks = [int(word[5:]) for word in environment if word.startswith(b"RANK=")]
        if MODULE.encode() in words and str(output).encode() in words and ranks:
            yield ranks[0], int(entry.name)


def kill_rank(rank: int, output: Path) -> None:
    (process,) = (number for each, number in training_processes(output) if each == rank)
    os.kill(process, signal.SIGKILL)
