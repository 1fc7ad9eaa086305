"""The folder of a run: who works in it, what it was begun with, and which stages are done.

A stage is done when its record is there, the hash of what went into it is still the same, and its results are there. So
a run that ended in the middle goes on where it was, and a stage is made again as soon as something before it changes.
"""

import fcntl
import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.checkpoints import read_object
from vllm_specext.speculative_config import short
from vllm_specext.whole_files import whole

LOCK, PLAN, DONE = "run.lock", "plan.json", "stages.json"
DATA, FEATURES, STATE, DRAFTER, LOGS = "data", "features", "state", "drafter", "logs"
CHECKED = "check"
"""Hidden states of the held-out answers, while these are checked."""
LATEST, BEST, TRAINED = "latest.pt", "best.pt", "trained"
"""In the folder of the state: what a training goes on from, its best weights, and its last."""
LOG, REPORT, CHECK, FAILED_CHECK = "log.jsonl", "report.md", "check.json", "failed_check.json"
BEGUN = "begun.json"
PLOTS = ("losses.png", "acceptance.png")
OURS = (PLAN, DONE, BEGUN, DATA, FEATURES, STATE, DRAFTER, CHECKED, LOGS, LOG, REPORT, CHECK, FAILED_CHECK, *PLOTS)
"""All that a run writes, and all that a restart removes."""
FREE_TO_CHANGE = ("licence", "log", "ray")
"""Settings that a run may go on with other values of."""


@contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Hold the run's lock; the number is the open file's, which is handed to each stage's process: as long as that is
    at work, whatever became of the command, nobody else begins. Raises ``ConfigurationError``."""
    path = folder / LOCK
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ConfigurationError(f"--output is {str(folder)!r}, which cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ConfigurationError(
            f"--output is {str(folder)!r}, in which another training is running; expected a folder of its own, or that "
            "the other one ends."
        ) from None
    else:
        yield descriptor
    finally:
        os.close(descriptor)


def check_ours(folder: Path) -> None:
    """Refuse a folder that has anything in it but a run. Nothing is made."""
    try:
        names = {path.name for path in folder.iterdir()}
    except FileNotFoundError:
        return
    except NotADirectoryError:
        raise ConfigurationError(f"--output is {str(folder)!r}, which is a file; expected a folder.") from None
    except OSError as error:
        raise ConfigurationError(f"--output is {str(folder)!r}, which cannot be read: {error.strerror}.") from None
    if names - {LOCK} and PLAN not in names:
        raise ConfigurationError(
            f"--output is {str(folder)!r}, which has files but no {PLAN}; expected a new or empty folder, or that of a "
            "run."
        )


def restart(folder: Path) -> None:
    """Remove all that a run wrote, and nothing else."""
    _remove(folder, OURS)


def begin(folder: Path, stage: str, inputs: str, leaves: Sequence[str]) -> None:
    """Note what ``stage`` is made from, before it is. What it ``leaves`` is removed if it was begun with other inputs:
    nothing must go on from there."""
    path = folder / BEGUN
    begun = read_object(path) if path.exists() else {}
    if begun.get(stage) != inputs:
        _remove(folder, leaves)
        write_json(path, {**begun, stage: inputs})


def _remove(folder: Path, names: Sequence[str]) -> None:
    for name in names:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def check_same(folder: Path, settings: Mapping[str, Any]) -> None:
    """Refuse to go on in ``folder`` with other ``settings`` than it was begun with, naming the first that differs."""
    path = folder / PLAN
    if not path.exists():
        return
    before = read_object(path).get("settings")
    if not isinstance(before, dict):
        raise ConfigurationError(f"{path} has no settings, so it is no plan; --restart begins anew.")
    if (found := first_difference(before, settings, FREE_TO_CHANGE)) is not None:
        key, old, new = found
        raise ConfigurationError(
            f"{str(folder)!r} was begun with {key} {old}, but {key} is {new} now; expected the same, another --output, "
            "or --restart to begin anew."
        )


def first_difference(
    before: Mapping[str, Any], now: Mapping[str, Any], but: tuple[str, ...]
) -> tuple[str, str, str] | None:
    """The first setting that differs and does not begin with one of ``but``, as it was and as it is, for a sentence."""
    old, new = _flat(before), _flat(json.loads(json.dumps(now)))
    for key in sorted(old.keys() | new.keys()):
        if not key.startswith(but) and old.get(key) != new.get(key):
            return key, short(repr(old.get(key))), short(repr(new.get(key)))
    return None


MADE_OF = {
    "target": ("the target has", (DATA, FEATURES)),
    "text": ("the target's tokenizer or chat template has", (DATA, FEATURES)),
    "data": ("files of --data have", (DATA, FEATURES)),
    "init": ("the drafter of --init has", (STATE,)),
}
"""By the names of the plan's hashes: what has changed where one is another, for a sentence, and what was made of it."""


def check_unchanged(folder: Path, hashes: Mapping[str, str | None]) -> None:
    """Refuse to go on in ``folder`` with other files than it was begun with, of which something is there already: it
    would be lost."""
    path = folder / PLAN
    before = read_object(path).get("hashes") if path.exists() else None
    for name, (changed, made) in MADE_OF.items():
        is_same = not isinstance(before, dict) or before.get(name) == hashes[name]
        if not is_same and any(True for each in made for _ in (folder / each).glob("*")):
            raise ConfigurationError(
                f"{changed} changed since {str(folder)!r} was begun; expected the same, another --output, or --restart "
                "to begin anew."
            )


def write_json(path: Path, value: Any) -> None:
    """Replace ``path`` as a whole."""
    with whole(path) as part:
        part.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def is_done(folder: Path, stage: str, inputs: str, results: Sequence[str]) -> bool:
    """Whether ``stage`` was made from what hashes to ``inputs``, and all its ``results`` are still there."""
    record = _records(folder).get(stage)
    same = isinstance(record, dict) and record.get("inputs") == inputs
    return same and all((folder / result).exists() for result in results)


def record_done(folder: Path, stage: str, inputs: str, seconds: float) -> None:
    finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    own = {"inputs": inputs, "seconds": round(seconds, 1), "finished": finished}
    write_json(folder / DONE, {**_records(folder), stage: own})


def seconds_of(folder: Path) -> dict[str, float]:
    """How long each stage that is done took, as far as it was made in one go."""
    return {stage: record["seconds"] for stage, record in _records(folder).items()}


def hash_of(*parts: Any) -> str:
    """Of values that JSON has."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def hash_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _records(folder: Path) -> dict[str, Any]:
    path = folder / DONE
    return read_object(path) if path.exists() else {}


def _flat(settings: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in settings.items():
        found |= _flat(value, f"{place}{key}.") if isinstance(value, dict) and value else {f"{place}{key}": value}
    return found
