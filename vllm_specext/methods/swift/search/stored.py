"""Sets that a search found, as JSON files that can be given back as ``swift_layers``.

A set is good for the target it was found with. The file says which one that was by what does not change when a folder
is renamed: architecture, number of layers, widths. The name is there for people only. A set for other weights of the
same shape does no harm but drafts worse.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.swift.search.search import Kind, Step
from vllm_specext.methods.swift.search.skip_set import SkipSet

MAX_LAYERS = 10_000
"""More layers than any real model has; a larger number means a damaged file."""


@dataclass(frozen=True)
class Target:
    model: str
    architecture: str
    layers: int
    hidden_size: int
    vocab_size: int


@dataclass(frozen=True)
class FoundSet:
    target: Target
    skipped: SkipSet
    skip_ratio: float
    matchness: float | None
    """Matchness of the set, ``None`` if it was never measured."""
    steps: int
    history: tuple[Step, ...] = ()


def write_found(path: Path, found: FoundSet) -> None:
    """Write ``found`` to ``path``. Who reads ``path`` meanwhile sees the whole file that was there before."""
    content = {
        **asdict(found.target),
        "skip_ratio": found.skip_ratio,
        "skipped_attention": found.skipped.attention,
        "skipped_mlp": found.skipped.mlp,
        "matchness": found.matchness,
        "steps": found.steps,
        "history": [[step.number, step.kind.value, step.score, step.best, step.adopted] for step in found.history],
    }
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        unfinished.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)


def read_found(path: Path) -> FoundSet:
    """Read a file that ``write_found`` wrote. Raises a ``ConfigurationError`` that names the file and the bad key."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigurationError(f"speculative-config key 'swift_layers' is {str(path)!r}, which is no file.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{path} is not a JSON file.") from error
    if not isinstance(content, dict):
        raise ConfigurationError(f"{path} does not hold a JSON object.")
    file = _File(path, content)
    layers = file.integer("layers", 3, MAX_LAYERS)
    target = Target(
        model=file.text("model"),
        architecture=file.text("architecture"),
        layers=layers,
        hidden_size=file.integer("hidden_size", 1, 2**31),
        vocab_size=file.integer("vocab_size", 1, 2**31),
    )
    attention, mlp = (file.skipped_layers(f"skipped_{kind}", layers) for kind in ("attention", "mlp"))
    return FoundSet(
        target=target,
        skipped=SkipSet(layers, attention, mlp),
        skip_ratio=file.share("skip_ratio"),
        matchness=None if content.get("matchness") is None else file.share("matchness"),
        steps=file.integer("steps", 0, 2**31),
        history=file.history(),
    )


def check_target(path: Path, found: FoundSet, target: Target) -> None:
    """Refuse a set that was found with a target of another shape."""
    for key in ("architecture", "layers", "hidden_size", "vocab_size"):
        wanted, given = getattr(target, key), getattr(found.target, key)
        if wanted != given:
            raise ConfigurationError(
                f"{path} is a set for {found.target.model}, whose {key} is {given!r}, but the target's is {wanted!r}."
            )


class _File:
    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self._path = path
        self._content = content

    def text(self, key: str) -> str:
        value = self._content.get(key)
        return value if isinstance(value, str) else self._refuse(key, value, "a string")

    def integer(self, key: str, least: int, most: int) -> int:
        value: Any = self._content.get(key)
        if _is_integer(value) and least <= value <= most:
            return value
        return self._refuse(key, value, f"an integer from {least} to {most}")

    def share(self, key: str) -> float:
        value: Any = self._content.get(key)
        return float(value) if _is_share(value) else self._refuse(key, value, "a number from 0 to 1")

    def skipped_layers(self, key: str, layers: int) -> tuple[int, ...]:
        value = self._content.get(key)
        if (
            isinstance(value, list)
            and all(_is_integer(layer) and 1 <= layer <= layers - 2 for layer in value)
            and value == sorted(set(value))
        ):
            return tuple(value)
        return self._refuse(key, value, f"a list of distinct layers from 1 to {layers - 2}, ascending")

    def history(self) -> tuple[Step, ...]:
        value = self._content.get("history", [])
        if isinstance(value, list) and all(map(_is_step, value)):
            return tuple(Step(number, Kind(kind), score, best, adopted) for number, kind, score, best, adopted in value)
        return self._refuse("history", value, "a list of steps [number, kind, score, best, adopted]")

    def _refuse(self, key: str, value: Any, expected: str) -> Any:
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:80] + "…"
        raise ConfigurationError(f"{self._path}: {key} is {shown}; expected {expected}.")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_share(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1


def _is_step(value: Any) -> bool:
    if not isinstance(value, Sequence) or len(value) != 5:
        return False
    number, kind, score, best, adopted = value
    kinds = [kind.value for kind in Kind]
    return _is_integer(number) and kind in kinds and _is_share(score) and _is_share(best) and isinstance(adopted, bool)
