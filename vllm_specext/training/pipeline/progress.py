"""A training's log as lines for people, while it is written."""

import json
from pathlib import Path
from typing import Any


class LogLines:
    """The entries of ``log.jsonl`` since it was asked last; those of before this object are left out."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.seen = self._size()

    def __call__(self) -> list[str]:
        if self._size() < self.seen:  # a training that goes on drops the entries after its state
            self.seen = 0
        if self._size() == self.seen:
            return []
        with self.path.open("rb") as file:
            file.seek(self.seen)
            *lines, rest = file.read().split(b"\n")
        self.seen = self._size() - len(rest)
        return [described(json.loads(line)) for line in lines if line]

    def _size(self) -> int:
        return self.path.stat().st_size if self.path.exists() else 0


def described(entry: dict[str, Any]) -> str:
    """One line, from what is in the entry."""
    told = [f"stage {entry['stage']}, step {entry['step']}"]
    if "loss" in entry:
        told.append(f"loss {entry['loss']:.3f}")
    if isinstance(counted := entry.get("counted"), list) and len(counted) > 1:
        told.append("positions counted " + ", ".join(f"{share:.0%}" for share in counted))
    if (tau := entry.get("valid/tau_chain")) is not None:
        told.append(f"held out {tau:.2f} tokens per verification")
    if (speed := entry.get("steps_per_s")) is not None:
        told.append(f"{speed:.2g} steps/s")
    if (wait := entry.get("data_wait", 0)) >= 0.1:
        told.append(f"{wait:.0%} of the time waiting for data")
    if entry.get("skipped"):
        told.append(f"{entry['skipped']} steps skipped")
    return ", ".join(told)
