"""The one trainer: every drafter, and the demonstration's target, is a `TrainingStep` with batches and stages.

With several processes (``torchrun``, ``accelerate launch``) each computes its share of every batch. Losses are sums
that are divided by the counts of all processes, so that their number changes nothing but the order of sums. Batches
that a process computes one after the other for a step are divided by their own counts, and weighted: where a mask
follows from the pass before, as GRIFFIN's does from the second stage on, that is not quite the mean of all.

A training that is killed and started again with as many processes goes on from its last state, and ends with the same
bits as one that was not killed: the state has the weights, the optimizers, the place in the data and all random
generators. SIGTERM and SIGINT end it after the step, with the state written and exit code 3; exit code 75 says that
the state could not be written, so that the one before is what a training goes on from.
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Generic, TypeVar

import torch
from torch import nn
from torch.optim import Optimizer
from tqdm import tqdm

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.clock import Clock
from vllm_specext.training.gradients import add_gradients
from vllm_specext.training.log import Entry, Journal, Recent, check_trackers
from vllm_specext.training.processes import (
    INTERRUPTED,
    NOT_SAVED,
    Interruption,
    check_same_place,
    check_same_weights,
    collect_random,
    largest,
    new_accelerator,
    restore_random,
)
from vllm_specext.training.run import Run, evaluate
from vllm_specext.training.stages import Stage
from vllm_specext.training.state import load_state, save_state
from vllm_specext.training.step import Batches, Progress, Share, TrainingStep

B = TypeVar("B")

MOST_SKIPPED = 20
"""Steps in a row without a finite gradient that end a training."""

MOST_FAILED_SAVES = 5
"""States in a row that could not be written, on a full disk or so, that end a training."""


@dataclass
class Position:
    """The place that a training has reached: finished steps and seconds of the stage, steps of all stages, steps that
    were skipped, and the most tokens per verification so far."""

    stage: int = 1
    step: int = 0
    seconds: float = 0.0
    steps: int = 0
    skipped: int = 0
    skipped_in_a_row: int = 0
    best: float = 0.0


def fit(step: TrainingStep[B], batches: Batches[B], stages: Sequence[Stage], run: Run | None = None) -> list[Entry]:
    """Train ``step.model`` in place and return the log: a dictionary for each entry.

    A state that was written with other settings than ``run`` has is refused with ``ConfigurationError``.
    """
    trainer = _Trainer(step, batches, run or Run())
    try:
        with Interruption(watching=trainer.run.state is not None) as interruption:
            while trainer.at.stage <= len(stages):
                trainer.train(stages[trainer.at.stage - 1], interruption)
    finally:  # an interruption, too, must not lose what trackers have not sent yet
        for tracker in trainer.accelerator.trackers:
            tracker.finish()
    return trainer.log


class _Trainer(Generic[B]):
    def __init__(self, step: TrainingStep[B], batches: Batches[B], run: Run) -> None:
        self.step, self.batches, self.run = step, batches, run
        check_trackers(run.trackers)
        self.trained = [p for p in step.model.parameters() if p.requires_grad]
        self.at, self.recent = Position(), Recent()
        self.log: list[Entry] = []
        self.saved_optimizers: list[dict[str, Any]] = []
        self.accelerator = new_accelerator(self.trained[0].device, run.trackers, run.folder)
        self.share = Share(self.accelerator.process_index, self.accelerator.num_processes)
        if run.state is not None and run.state.exists():
            self._restore(load_state(run.state, run.settings))
        check_same_place(self.accelerator, run.state, self.at.steps)
        self.journal = Journal(self.accelerator, run.log, run.trackers, run.settings, entries=len(self.log))
        self.wrapped = self.accelerator.prepare(step)
        self.failed_saves = 0
        """The last so many states could not be written."""
        self.same_weights = False
        """Whether all processes were seen to have them."""

    def train(self, stage: Stage, interruption: Interruption) -> None:
        """The rest of the stage that the training is in."""
        optimizers = self._optimizers(stage)
        length, at = stage.length, self.at
        clock = Clock(at.seconds)
        done = length.done(at.step, at.seconds)
        with tqdm(
            total=round(length.total),
            desc=f"stage {at.stage}",
            unit=length.unit,
            mininterval=5,
            disable=not self.accelerator.is_main_process,
        ) as bar:
            while done < 1:
                bar.update(round(length.total * done) - bar.n)
                finite = self._make_step(stage, optimizers, Progress(at.stage, at.step + 1, done), clock)
                at.seconds, asked = largest(self.accelerator, clock.seconds(), interruption.asked)
                at.step, at.steps = at.step + 1, at.steps + 1
                before, done = done, length.done(at.step, at.seconds)
                self._count(finite)
                logged = length.logs(at.step, before, done)
                if logged:
                    self._write_entry(Progress(at.stage, at.step, before), optimizers, clock, last=done == 1)
                if asked or (done < 1 and (at.step % self.run.save_every == 0 if self.run.save_every else logged)):
                    self._save(optimizers)
                if asked:
                    sys.exit(NOT_SAVED if self.failed_saves else INTERRUPTED)
            bar.update(round(length.total) - bar.n)
        self.at = replace(at, stage=at.stage + 1, step=0, seconds=0.0)
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

    def _make_step(self, stage: Stage, optimizers: list[Optimizer], progress: Progress, clock: Clock) -> bool:
        """Whether loss and gradients are finite; if not, the weights were left alone."""
        factor = stage.rate(progress)
        for group in _groups(optimizers):
            group["lr"] = group["initial_lr"] * factor
        with clock.waiting():
            batches = [self.batches.next(progress, self.share) for _ in range(self.run.accumulate)]
        terms = add_gradients(self.accelerator, self.wrapped, self.step, batches, progress)
        norm = nn.utils.get_total_norm([p.grad for p in self.trained if p.grad is not None])
        finite = bool(torch.isfinite(norm)) and all(bool(torch.isfinite(found["loss"][0])) for found in terms)
        if finite:
            stage.clip(self.trained)
            for optimizer in optimizers:
                optimizer.step()
            for found in terms:
                self.recent.add(found)
            self.recent.add({"grad_norm": (norm, torch.ones(()))})
        for optimizer in optimizers:
            optimizer.zero_grad()
        if finite and not self.same_weights:
            check_same_weights(self.accelerator, self.trained)
            self.same_weights = True
        return finite

    def _count(self, finite: bool) -> None:
        at = self.at
        if finite:
            at.skipped_in_a_row = 0
            return
        at.skipped, at.skipped_in_a_row = at.skipped + 1, at.skipped_in_a_row + 1
        if at.skipped_in_a_row == MOST_SKIPPED:
            raise ConfigurationError(
                f"{MOST_SKIPPED} steps in a row, up to step {at.step} of stage {at.stage}, have a loss or a gradient "
                "that is not a finite number; a lower learning rate or other data is needed."
            )

    def _write_entry(self, progress: Progress, optimizers: list[Optimizer], clock: Clock, last: bool) -> None:
        entry: Entry = {"stage": progress.stage, "step": progress.step, **self.recent.means()}
        entry["lr"] = float(f"{_groups(optimizers)[0]['lr']:.6g}")
        skipped = {"skipped": self.at.skipped} if self.at.skipped else {}
        if self.accelerator.is_main_process:
            entry |= skipped | self.step.measure(progress)
            if self.run.evaluation is not None and self.run.evaluation.due(progress.step, last):
                self.at.best, figures = evaluate(self.run, self.run.evaluation, self.step.model, self.at.best)
                entry |= figures
            tqdm.write(json.dumps(entry))
            self.journal.write(entry, clock.speed(), self.at.steps)
        self.log.append(entry)
        self.recent = Recent()

    def _save(self, optimizers: list[Optimizer]) -> None:
        if self.run.state is None:
            return
        random = collect_random(self.accelerator)
        if self.accelerator.is_main_process:
            state = {
                "at": asdict(self.at),
                "log": json.dumps(self.log),
                "recent": self.recent.terms,
                "model": self.step.model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "batches": self.batches.state_dict(),
                **random,
            }
            try:
                save_state(self.run.state, state, self.run.settings)
                self.failed_saves = 0
            except (OSError, RuntimeError) as error:
                self.failed_saves += 1
                tqdm.write(f"{self.run.state} could not be written: {str(error).splitlines()[0]}")
        # No process goes on before there is a state to go on from.
        self.failed_saves = int(largest(self.accelerator, self.failed_saves)[0])
        if self.failed_saves == MOST_FAILED_SAVES:
            sys.exit(NOT_SAVED)

    def _restore(self, state: dict[str, Any]) -> None:
        try:
            self.step.model.load_state_dict(state["model"])
        except RuntimeError as error:
            raise ConfigurationError(
                f"{self.run.state} has the state of another model; expected this one's."
            ) from error
        self.batches.load_state_dict(state["batches"])
        self.at, self.log = Position(**state["at"]), json.loads(state["log"])
        self.recent = Recent(state["recent"])
        self.saved_optimizers = state["optimizers"]
        restore_random(state, self.share.process)


def _groups(optimizers: Sequence[Optimizer]) -> list[dict[str, Any]]:
    return [group for optimizer in optimizers for group in optimizer.param_groups]
