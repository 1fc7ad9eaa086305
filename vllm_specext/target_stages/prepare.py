"""The first stage, ``python -m vllm_specext.target_stages.prepare RUN``: rows of text with the target's own answers,
and its hidden states of them, in one pass of the target; a method that runs the target itself gets the rows alone, and
so does a training that has the target beside it.

Each group of conversations becomes a shard. A preparation that was interrupted goes on after the last of them.
"""

from pathlib import Path

import torch

from vllm_specext.preparation.feature_folder import FeatureFolder
from vllm_specext.target_stages.answers_only import AnswersOnly
from vllm_specext.target_stages.target_engine import capturing, device_groups
from vllm_specext.training.data.folder import read_data
from vllm_specext.training.data.prepare import prepare
from vllm_specext.training.data.progress import Progress
from vllm_specext.training.data.readable import look_through
from vllm_specext.training.data.settings import data_settings
from vllm_specext.training.data.stats import remarks
from vllm_specext.training.data.template import load_template
from vllm_specext.training.pipeline.devices import visible_devices
from vllm_specext.training.pipeline.folder import DATA, FEATURES
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.record import read_record, stage_inputs
from vllm_specext.training.pipeline.stage_process import Say, end_on_sigterm, run_stage
from vllm_specext.training.shards import SUFFIX

GROUP = 64
"""Conversations of a shard, for each engine."""

HELD_OUT = f"held-out{SUFFIX}"
"""Where nothing else is kept: the features of the rows that the drafter is measured on."""


def work(folder: Path, say: Say) -> None:
    end_on_sigterm()
    record = read_record(folder)
    settings = record.settings
    groups = device_groups(visible_devices(torch.cuda.device_count()), settings.tensor_parallel)
    template = load_template(settings.target, settings.template_flags)
    total = None
    if settings.tokens is None:  # of which a part of the data may be enough
        say("reading the data")
        readable, total = look_through(settings.data, settings.samples, template.vocab_size)
        if readable.first is not None:
            say(f"{readable.unreadable} of {readable.read} rows are left out, of which the first: {readable.first}")
    say(f"loading the target {settings.target}")
    source = stage_inputs(record)["prepare"]
    with capturing(settings, groups) as (engine, engines, at_once):
        wanted = data_settings(
            data=settings.data,
            answers=settings.answers,
            max_length=settings.max_length,
            max_new_tokens=settings.max_length,
            samples=settings.samples,
            tokens=settings.tokens,
            template_flags=settings.template_flags,
            conversations_at_once=at_once,
            group=GROUP * engines,
        )
        keeps = TRAINABLE[settings.method].captured is not None and not settings.stream
        answers = engine if keeps else AnswersOnly(engine)
        features = FeatureFolder(answers, folder / FEATURES, record.target_hash, source)
        say("the target answers" if settings.answers != "given" else "the target reads the answers that are given")
        progress = Progress(total, say)
        stats = prepare(wanted, template, folder / DATA, features, features.keep, progress)
        features.end()
        missing = list(features.missing)
        if settings.stream:
            say("the target reads the rows that are held out")
            held_out = list(read_data(folder / DATA, "valid"))
            missing += engine.write(folder / FEATURES / HELD_OUT, held_out, (), record.target_hash, source)
    for remark in remarks(stats):
        say(remark)
    lost = f"; {len(missing)} rows had no room for their states" if missing else ""
    say(
        f"{stats['train']['rows']} rows to train on, {stats['valid']['rows']} held out, "
        f"{stats['train']['loss_tokens']} tokens to learn{lost}"
    )


if __name__ == "__main__":
    run_stage(work)
