"""The one trainer: every drafter, and the demonstration's target, is a `TrainingStep` with batches and stages.

A training that is killed and started again goes on from its last state, and ends with the same bits as one that was not
killed: the state has the weights, the optimizers, the place in the data and all random generators. The state is written
along with every log entry.
"""

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from tqdm import tqdm

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.stages import Stage
from vllm_specext.training.state import load_state, save_state
from vllm_specext.training.step import Batches, Progress, TrainingStep

B = TypeVar("B")

MOST_SKIPPED = 20
"""Steps in a row without a finite gradient that end a training."""


@dataclass
class Position:
    """The place that a training has reached: finished steps and seconds of the stage, and steps that were skipped."""

    stage: int = 1
    step: int = 0
    seconds: float = 0.0
    skipped: int = 0
    skipped_in_a_row: int = 0


def fit(
    step: TrainingStep[B],
    batches: Batches[B],
    stages: Sequence[Stage],
    state: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[dict[str, Any]]:
    """Train ``step.model`` in place and return the log: a dictionary for each entry.

    ``state`` is the file from which the training goes on, if it is there, and to which its state is written. A file
    that was written with other ``settings`` is refused with ``ConfigurationError``.
    """
    trainer = _Trainer(step, batches, state, settings or {})
    while trainer.at.stage <= len(stages):
        trainer.run(stages[trainer.at.stage - 1])
    return trainer.log


def write_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write ``training.json`` to ``folder``: the recipe and the log of what was trained."""
    (folder / "training.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")


class _Trainer(Generic[B]):
    def __init__(
        self, step: TrainingStep[B], batches: Batches[B], file: Path | None, settings: Mapping[str, Any]
    ) -> None:
        self.step, self.batches, self.file, self.settings = step, batches, file, settings
        self.trained = [p for p in step.model.parameters() if p.requires_grad]
        self.at = Position()
        self.log: list[dict[str, Any]] = []
        self.saved_optimizers: list[dict[str, Any]] = []
        if file is not None and file.exists():
            self._restore(load_state(file, settings))

    def run(self, stage: Stage) -> None:
        """The rest of the stage that the training is in."""
        optimizers = self._optimizers(stage)
        length, at = stage.length, self.at
        started = time.process_time() - at.seconds
        done = length.done(at.step, at.seconds)
        recent: list[dict[str, Tensor]] = []
        name = f"stage {at.stage}"
        with tqdm(total=round(length.total), desc=name, unit=length.unit, mininterval=5) as bar:
            while done < 1:
                bar.update(round(length.total * done) - bar.n)
                terms = self._make_step(stage, optimizers, Progress(at.stage, at.step + 1, done))
                at.step, at.seconds = at.step + 1, time.process_time() - started
                before, done = done, length.done(at.step, at.seconds)
                self._count(terms, recent)
                if length.logs(at.step, before, done):
                    self._write_entry(recent, Progress(at.stage, at.step, before))
                    recent.clear()
                    if done < 1:
                        self._save(optimizers)
            bar.update(round(length.total) - bar.n)
        self.at = Position(stage=at.stage + 1, skipped=at.skipped, skipped_in_a_row=at.skipped_in_a_row)
        self._save([])

    def _optimizers(self, stage: Stage) -> list[Optimizer]:
        optimizers = stage.optimizers(self.step.model)
        for group in _groups(optimizers):
            group["initial_lr"] = group["lr"]
        if self.saved_optimizers:
            for optimizer, saved in zip(optimizers, self.saved_optimizers, strict=True):
                optimizer.load_state_dict(saved)
            self.saved_optimizers = []
        return optimizers

    def _make_step(self, stage: Stage, optimizers: list[Optimizer], progress: Progress) -> dict[str, Tensor] | None:
        """The step's terms, or ``None`` where loss or gradients are not finite and the weights were left alone."""
        factor = stage.rate(progress)
        for group in _groups(optimizers):
            group["lr"] = group["initial_lr"] * factor
        loss, terms = self.step(self.batches.next(progress), progress)
        loss.backward()
        norm = nn.utils.get_total_norm([p.grad for p in self.trained if p.grad is not None])
        finite = bool(torch.isfinite(loss) & torch.isfinite(norm))
        if finite:
            stage.clip(self.trained)
            for optimizer in optimizers:
                optimizer.step()
        for optimizer in optimizers:
            optimizer.zero_grad()
        return terms if finite else None

    def _count(self, terms: dict[str, Tensor] | None, recent: list[dict[str, Tensor]]) -> None:
        at = self.at
        if terms is not None:
            at.skipped_in_a_row = 0
            recent.append(terms)
            return
        at.skipped, at.skipped_in_a_row = at.skipped + 1, at.skipped_in_a_row + 1
        if at.skipped_in_a_row == MOST_SKIPPED:
            raise ConfigurationError(
                f"{MOST_SKIPPED} steps in a row, up to step {at.step} of stage {at.stage}, have a loss or a gradient "
                "that is not a finite number; a lower learning rate or other data is needed."
            )

    def _write_entry(self, recent: list[dict[str, Tensor]], progress: Progress) -> None:
        entry = {"stage": progress.stage, "step": progress.step, **_means(recent)}
        skipped = {"skipped": self.at.skipped} if self.at.skipped else {}
        self.log.append(entry | skipped | self.step.measure(progress))
        tqdm.write(json.dumps(self.log[-1]))

    def _save(self, optimizers: list[Optimizer]) -> None:
        if self.file is None:
            return
        state = {
            "at": asdict(self.at),
            "log": json.dumps(self.log),
            "model": self.step.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "batches": self.batches.state_dict(),
            "random": torch.get_rng_state(),
            "cuda_random": torch.cuda.get_rng_state_all(),
        }
        save_state(self.file, state, self.settings)

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            self.step.model.load_state_dict(state["model"])
        except RuntimeError as error:
            raise ConfigurationError(f"{self.file} has the state of another model; expected this one's.") from error
        self.batches.load_state_dict(state["batches"])
        self.at, self.log = Position(**state["at"]), json.loads(state["log"])
        self.saved_optimizers = state["optimizers"]
        torch.set_rng_state(state["random"])
        torch.cuda.set_rng_state_all(state["cuda_random"])


def _groups(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]


def _means(recent: Sequence[dict[str, Tensor]]) -> dict[str, Any]:
    """Every term's mean over ``recent`` steps, rounded: a number, or a list with one for each pass."""
    names = recent[0] if recent else {}
    means = {name: torch.stack([terms[name] for terms in recent]).mean(dim=0).tolist() for name in names}
    return {
        name: [round(x, 4) for x in mean] if isinstance(mean, list) else round(mean, 4) for name, mean in means.items()
    }
