"""The second stage, ``python -m vllm_specext.training.pipeline.train RUN`` in one process or, by torch's launcher, in
several: the drafter from the shards of features. The target itself is not loaded, but its embedding and its head."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.acceptance import Acceptance
from vllm_specext.training.data.folder import Part, read_data
from vllm_specext.training.pipeline.chains import acceptance, accepted_by_depth, answers_in
from vllm_specext.training.pipeline.folder import BEST, DATA, FEATURES, LATEST, LOG, STATE, TRAINED
from vllm_specext.training.pipeline.inputs import init_folder
from vllm_specext.training.pipeline.method import Drafter, TrainedMethod
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.record import Record, read_record
from vllm_specext.training.pipeline.stage_process import Say, run_stage
from vllm_specext.training.pipeline.streaming import streamed_rows
from vllm_specext.training.pipeline.target import read_target
from vllm_specext.training.pipeline.text_rows import TextRows
from vllm_specext.training.processes import ending_at_once
from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.rows import RowSource
from vllm_specext.training.run import Evaluation, Run
from vllm_specext.training.shard_rows import ShardRows, find_shards

EVALUATED = 64
"""Held-out rows that the drafter is measured on while it trains."""

EVALUATIONS = 40
"""How often it is, at least, in a training that has so many log entries."""


def work(folder: Path, say: Say) -> None:
    record = read_record(folder)
    settings, method = record.settings, TRAINABLE[record.settings.method]
    init = None if settings.init is None else init_folder(settings.init)
    drafter = method.begin(read_target(settings.target, weights=True), settings.recipe, init, this_device())
    with training_rows(folder, record) as rows:
        train(folder, record, drafter, rows, say)


def train(folder: Path, record: Record, drafter: Drafter, rows: RowSource, say: Say) -> None:
    settings, method = record.settings, TRAINABLE[record.settings.method]
    recipe, valid = settings.recipe, kept_rows(folder, record, "valid")
    if not measure(method, drafter, valid, recipe.chain).verifications:
        raise ConfigurationError(
            f"{folder / DATA} has no held-out answer of more than {recipe.chain} tokens to measure acceptance on; "
            "more or other --data are needed."
        )
    steps = stage_steps(method.packs(rows, recipe), recipe)
    device = this_device().type
    say(f"{len(rows.lengths)} rows, {' + '.join(map(str, steps))} steps, {process_count()} processes on {device}")
    state, every = folder / STATE, evaluated_every(sum(steps), recipe.log_every)
    state.mkdir(exist_ok=True)
    drafter.train(
        rows,
        recipe,
        steps,
        process_count(),
        state / TRAINED,
        Run(
            state=state / LATEST,
            save_every=every,
            accumulate=recipe.packs_of_each(process_count()),
            log=folder / LOG,
            trackers=settings.log,
            folder=folder,
            evaluation=Evaluation(every, lambda: measure(method, drafter, valid, recipe.chain)),
            best=state / BEST,
        ),
    )


def evaluated_every(steps: int, log_every: int) -> int:
    """Steps from one evaluation, and one state, to the next: a multiple of the steps between log entries. Both are work
    of one process, for which the others wait, and take longer than many steps on a GPU."""
    return log_every * max(1, steps // (EVALUATIONS * log_every))


def process_count() -> int:
    """As the launcher says."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def this_device() -> torch.device:
    """The GPU of this process, where there is one."""
    return (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if torch.cuda.is_available()
        else torch.device("cpu")
    )


@contextmanager
def training_rows(folder: Path, record: Record) -> Iterator[RowSource]:
    """The rows to train on. Where nothing was kept of them, the target computes their features while this lasts."""
    if record.settings.stream:
        with streamed_rows(folder, record, int(os.environ.get("RANK", "0"))) as rows:
            yield rows
    else:
        yield kept_rows(folder, record, "train")


def kept_rows(folder: Path, record: Record, part: Part) -> RowSource:
    """The rows of one part, with what was kept of the target, if anything was."""
    settings = record.settings
    if TRAINABLE[settings.method].captured is None:
        return TextRows(read_data(folder / DATA, part), settings.recipe.seed)
    shards = find_shards(folder / FEATURES, record.target_hash)
    return ShardRows(shards, settings.recipe.seed, {row.key for row in read_data(folder / DATA, part)})


def stage_steps(packs: int, recipe: StagedKeys) -> tuple[int, ...]:
    """Of each stage, by the packs that the rows make."""
    if recipe.steps is not None:
        return recipe.steps
    return tuple(max(1, round(epochs * packs / recipe.packs)) for epochs in recipe.epochs)


def measure(method: TrainedMethod, drafter: Drafter, valid: RowSource, chain: int) -> Acceptance:
    """Chains of so many tokens, of the weights of the moment, on held-out rows."""
    rows = valid.read(range(min(EVALUATED, len(valid.lengths))))
    texts = [text for row in rows for text in answers_in(row, method.states(row), chain)]
    return acceptance(*accepted_by_depth(drafter.draft, texts, chain))


if __name__ == "__main__":
    with ending_at_once():
        run_stage(work)
