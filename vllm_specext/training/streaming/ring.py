"""The folder through which the target's process hands features to the processes of a training.

| file | what it says |
| --- | --- |
| ``alive`` | that the target's process lives: it holds a lock on it |
| ``at-P`` | the pack that training process ``P`` is at, so that those before are not needed for it any more |
| ``N.json`` | that the features of visit ``N`` are there, in which files, and which rows are missing |
| ``N*.safetensors`` | shards of features |
| ``refused`` | a sentence: why the target's process has ended |
"""

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.shards import SUFFIX

POLL = 0.05
"""Seconds from one look at the folder to the next."""
ALIVE, REFUSED = "alive", "refused"


class TargetEndedError(RuntimeError):
    """The target's process has ended while features were needed. The same training may go on later."""


@dataclass(frozen=True)
class Ring:
    folder: Path

    @contextmanager
    def held(self) -> Iterator[int]:
        """Make the folder; the number is that of an open file. Whoever has it keeps the ring alive."""
        self.folder.mkdir(parents=True)
        # Nobody must see the file before it is locked.
        part = self.folder / f"{ALIVE}.part"
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            part.rename(self.folder / ALIVE)
            yield descriptor
        finally:
            os.close(descriptor)

    def shard(self, visit: int) -> Path:
        """The file of a visit's features, or what the names of its files begin with."""
        return self.folder / f"{visit}{SUFFIX}"

    def note(self, process: int, pack: int) -> None:
        """Training process ``process`` needs nothing before ``pack`` any more. Waits for the ring to be made."""
        while not (self.folder / ALIVE).exists():
            time.sleep(POLL)
        self._write(f"at-{process}", str(pack))

    def slowest(self, processes: int) -> int | None:
        """The lowest pack that a training process is at; ``None`` before all have begun."""
        files = [self.folder / f"at-{process}" for process in range(processes)]
        return min(int(file.read_text()) for file in files) if all(file.exists() for file in files) else None

    def publish(self, visit: int, missing: list[str]) -> None:
        """The features of ``visit`` are there, but for the rows with these keys."""
        shards = [path.name for path in sorted(self.folder.glob(f"{visit}*{SUFFIX}")) if _visit(path) == visit]
        self._write(f"{visit}.json", json.dumps({"shards": shards, "missing": missing}))

    def remove(self, visit: int) -> None:
        """The features of ``visit`` are not needed any more. Files that are open can still be read."""
        for path in self.folder.glob(f"{visit}*"):
            if _visit(path) == visit:
                path.unlink()

    def refuse(self, sentence: str) -> None:
        self._write(REFUSED, sentence)

    def wait(self, visit: int) -> list[Path]:
        """The shards of ``visit``, as soon as they are there.

        Raises ``ConfigurationError`` where the target's process gave up or lost a row, and `TargetEndedError` where it
        died.
        """
        path = self.folder / f"{visit}.json"
        while not path.exists():
            lived = self._lives()
            if (refused := self.folder / REFUSED).exists():
                raise ConfigurationError(refused.read_text())
            if not (lived or path.exists()):
                raise TargetEndedError("the process in which the target computes features has ended.")
            time.sleep(POLL)
        found = json.loads(path.read_text())
        if found["missing"]:
            raise ConfigurationError(
                f"{len(found['missing'])} rows of --data have hidden states of the target that are not finite numbers "
                f"or found no room, the first with the key {found['missing'][0]}; expected states of all rows."
            )
        return [self.folder / name for name in found["shards"]]

    def _lives(self) -> bool:
        try:
            with (self.folder / ALIVE).open("r+b") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return True  # it is about to begin
        except BlockingIOError:
            return True
        return False

    def _write(self, name: str, text: str) -> None:
        part = self.folder / f"{name}.part"
        part.write_text(text, encoding="utf-8")
        part.replace(self.folder / name)


def _visit(path: Path) -> int:
    """The visit that a file ``N.json``, ``N.safetensors`` or ``N-M.safetensors`` belongs to; -1 for another file."""
    name = path.name.split(".")[0].split("-")[0]
    return int(name) if name.isdecimal() else -1
