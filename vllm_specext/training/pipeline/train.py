"""The second stage, ``python -m vllm_specext.training.pipeline.train RUN`` in one process or, by torch's launcher, in
several: the drafter from the shards of features. The target itself is not loaded, but its embedding and its head."""

import os
from pathlib import Path

import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.source import drafter_directory
from vllm_specext.training.acceptance import Acceptance
from vllm_specext.training.data.folder import Part, read_data
from vllm_specext.training.pipeline.chains import CHAIN, acceptance, accepted_by_depth, answers_in
from vllm_specext.training.pipeline.folder import BEST, DATA, FEATURES, LATEST, LOG, STATE, TRAINED
from vllm_specext.training.pipeline.method import Drafter, TrainedMethod
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.record import Record, read_record
from vllm_specext.training.pipeline.stage_process import Say, run_stage
from vllm_specext.training.pipeline.target import read_target
from vllm_specext.training.pipeline.text_rows import TextRows
from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.rows import RowSource
from vllm_specext.training.run import Evaluation, Run
from vllm_specext.training.shard_rows import ShardRows, find_shards

EVALUATED = 64
"""Held-out rows that the drafter is measured on while it trains."""


def work(folder: Path, say: Say) -> None:
    record = read_record(folder)
    settings, device = record.settings, this_device()
    method, recipe = TRAINABLE[settings.method], settings.recipe
    init = None if settings.init is None else drafter_directory(settings.init, None, role="--init")
    drafter = method.begin(read_target(settings.target, weights=True), recipe, init, device)
    rows, valid = row_sources(folder, record)
    if not measure(method, drafter, valid).verifications:
        raise ConfigurationError(
            f"{folder / DATA} has no held-out answer of more than {CHAIN} tokens to measure acceptance on; more or "
            "other --data are needed."
        )
    steps = stage_steps(method.packs(rows, recipe), recipe)
    say(f"{len(rows.lengths)} rows, {' + '.join(map(str, steps))} steps, {process_count()} processes on {device.type}")
    state = folder / STATE
    state.mkdir(exist_ok=True)
    drafter.train(
        rows,
        recipe,
        steps,
        process_count(),
        state / TRAINED,
        Run(
            state=state / LATEST,
            accumulate=recipe.packs_of_each(process_count()),
            log=folder / LOG,
            trackers=settings.log,
            folder=folder,
            evaluation=Evaluation(recipe.log_every, lambda: measure(method, drafter, valid)),
            best=state / BEST,
        ),
    )


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


def row_sources(folder: Path, record: Record) -> list[RowSource]:
    """The rows to train on, and those held out; with what was kept of the target, if anything was."""
    settings = record.settings
    parts: tuple[Part, ...] = ("train", "valid")
    if TRAINABLE[settings.method].captured is None:
        return [TextRows(read_data(folder / DATA, part), settings.recipe.seed) for part in parts]
    shards = find_shards(folder / FEATURES, record.target_hash)
    keys = [{row.key for row in read_data(folder / DATA, part)} for part in parts]
    return [ShardRows(shards, settings.recipe.seed, each) for each in keys]


def stage_steps(packs: int, recipe: StagedKeys) -> tuple[int, ...]:
    """Of each stage, by the packs that the rows make."""
    if recipe.steps is not None:
        return recipe.steps
    return tuple(max(1, round(epochs * packs / recipe.packs)) for epochs in recipe.epochs)


def measure(method: TrainedMethod, drafter: Drafter, valid: RowSource) -> Acceptance:
    """Chains of the weights of the moment, on held-out rows."""
    rows = valid.read(range(min(EVALUATED, len(valid.lengths))))
    texts = [text for row in rows for text in answers_in(row, method.states(row))]
    return acceptance(*accepted_by_depth(drafter.draft, texts))


if __name__ == "__main__":
    run_stage(work)
