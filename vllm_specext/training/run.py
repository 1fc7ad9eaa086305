"""What of a training does not belong to its method: files, trackers, accumulation, evaluation."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn
from tqdm import tqdm

from vllm_specext.training.acceptance import Acceptance
from vllm_specext.training.state import load_state, save_state


@dataclass(frozen=True)
class Evaluation:
    """Simulated chains with the weights of the moment, after every ``every`` steps and at a stage's end; the first
    process makes them, and only when there is a log entry."""

    every: int
    measure: Callable[[], Acceptance]

    def due(self, steps: int, last: bool) -> bool:
        return last or steps % self.every == 0


@dataclass(frozen=True)
class Run:
    state: Path | None = None
    """The file from which the training goes on, if it is there, and to which its state is written. Only this trainer
    may have written it."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What has to be the same for a training to go on from its state."""
    save_every: int | None = None
    """Steps from one state to the next; along with every log entry unless given."""
    accumulate: int = 1
    """Batches that make one optimizer step."""
    log: Path | None = None
    """``log.jsonl``: the log with figures of speed, an entry a line."""
    trackers: Sequence[Any] = ()
    """Names (``log.TRACKERS``), or trackers of accelerate."""
    folder: Path | None = None
    """Where trackers write."""
    evaluation: Evaluation | None = None
    best: Path | None = None
    """The weights of the evaluation with the most tokens per verification."""


def evaluate(run: Run, evaluation: Evaluation, model: nn.Module, best: float) -> tuple[float, dict[str, float]]:
    """The most tokens per verification, which were ``best`` before, and the figures to log. Better weights are kept,
    where they can be written; otherwise those before stay the best."""
    found = evaluation.measure()
    if found.tokens_per_verification > best:
        better = {"model": model.state_dict(), "tokens_per_verification": found.tokens_per_verification}
        try:
            if run.best is not None:
                save_state(run.best, better, {})
            best = found.tokens_per_verification
        except (OSError, RuntimeError) as error:  # a full disk, mostly
            tqdm.write(f"{run.best} could not be written: {str(error).splitlines()[0]}")
    depths = {f"valid/accept/depth_{n}": round(x, 4) for n, x in enumerate(found.rate_at_depth, start=1)}
    return best, {**depths, "valid/tau_chain": round(found.tokens_per_verification, 4)}


def load_best(path: Path, model: nn.Module) -> float:
    """Give ``model`` the best weights; returns their tokens per verification."""
    kept = load_state(path, {})
    model.load_state_dict(kept["model"])
    return float(kept["tokens_per_verification"])


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write ``training.json`` to ``folder``: the recipe and the log of what was trained."""
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
