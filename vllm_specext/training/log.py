"""The log of a training: the means of its terms, entry by entry, for its record, for a file and for trackers."""

import importlib.util
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vllm_specext.errors import ConfigurationError

if TYPE_CHECKING:
    from accelerate import Accelerator

TRACKERS = {"tensorboard": "tensorboard", "wandb": "wandb", "trackio": "trackio"}
"""The trackers that can be asked for, and the package that each needs."""

Entry = dict[str, Any]


class Recent:
    """Sums and counts of terms, of all processes, since the last entry."""

    def __init__(self, kept: Mapping[str, tuple[Tensor, Tensor]] | None = None) -> None:
        self.terms = dict(kept or {})

    def add(self, terms: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        for name, pair in terms.items():
            value, count = (x.detach().double().cpu() for x in pair)
            if name in self.terms:
                value, count = value + self.terms[name][0], count + self.terms[name][1]
            self.terms[name] = value, count

    def means(self) -> Entry:
        """Every term's mean, rounded: a number, or a list with one for each pass."""
        means: Entry = {}
        for name, (value, count) in self.terms.items():
            mean = value / count.clamp(min=1e-9)
            means[name] = [round(x, 4) for x in mean.tolist()] if mean.ndim else round(mean.item(), 4)
        return means


class Journal:
    """``log.jsonl``, one entry a line, and the trackers. Only the first process writes."""

    def __init__(
        self,
        accelerator: "Accelerator",
        file: Path | None,
        trackers: Sequence[Any],
        settings: Mapping[str, Any],
        entries: int,
    ) -> None:
        """``entries`` of the file are kept: the steps after those are made again."""
        self.accelerator = accelerator
        self.file = file if accelerator.is_main_process else None
        if trackers:
            plain = {key: x if isinstance(x, int | float | str) else json.dumps(x) for key, x in settings.items()}
            accelerator.init_trackers("training", config=plain)
        if self.file is not None and self.file.exists():
            lines = self.file.read_text(encoding="utf-8").splitlines(keepends=True)
            self.file.write_text("".join(lines[:entries]), encoding="utf-8")

    def write(self, entry: Entry, speed: Mapping[str, float], steps: int) -> None:
        """``speed``: figures that depend on the machine; ``steps`` of all stages so far."""
        line = json.dumps({**entry, **speed})
        if self.file is not None:
            with self.file.open("a", encoding="utf-8") as out:
                out.write(line + "\n")
        self.accelerator.log(scalars({**entry, **speed}), step=steps)


def scalars(entry: Mapping[str, Any]) -> dict[str, float]:
    """The names and numbers that trackers get of an entry: ``train/token/pass_2``, ``valid/tau_chain``."""
    found: dict[str, float] = {}
    for name, value in entry.items():
        path = name if "/" in name else f"train/{name}"
        if isinstance(value, list):
            found |= {f"{path}/pass_{n}": x for n, x in enumerate(value, start=1)}
        elif isinstance(value, int | float):
            found[path] = value
    return found


def check_trackers(trackers: Sequence[Any]) -> None:
    """Refuse the name of a tracker that is unknown or not installed."""
    for name in trackers:
        if isinstance(name, str) and name not in TRACKERS:
            raise ConfigurationError(f"log has the tracker {name!r}; expected one of {', '.join(TRACKERS)}.")
        if isinstance(name, str) and importlib.util.find_spec(TRACKERS[name]) is None:
            raise ConfigurationError(f"log has the tracker {name!r}, which is not installed; `pip install {name}`.")
