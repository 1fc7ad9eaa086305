"""The first stage, ``python -m vllm_specext.target_stages.prepare RUN``: rows of text with the target's own answers,
and its hidden states of them, in one pass of the target; a method that runs the target itself gets the rows alone.

Each group of conversations that the target answers at once becomes a shard. A preparation that was interrupted goes on
after the last of them.
"""

from pathlib import Path

import torch

from vllm_specext.preparation.feature_folder import FeatureFolder
from vllm_specext.target_stages.answers_only import AnswersOnly
from vllm_specext.target_stages.target_engine import AT_ONCE, capturing, device_groups
from vllm_specext.training.data.prepare import prepare
from vllm_specext.training.data.settings import data_settings
from vllm_specext.training.data.template import load_template
from vllm_specext.training.pipeline.folder import DATA, FEATURES
from vllm_specext.training.pipeline.methods import TRAINABLE
from vllm_specext.training.pipeline.record import read_record, stage_inputs
from vllm_specext.training.pipeline.stage_process import Say, end_on_sigterm, run_stage


def work(folder: Path, say: Say) -> None:
    end_on_sigterm()
    record = read_record(folder)
    settings = record.settings
    groups = device_groups(torch.cuda.device_count(), settings.tensor_parallel)
    wanted = data_settings(
        data=settings.data,
        answers=settings.answers,
        max_length=settings.max_length,
        max_new_tokens=settings.max_length,
        samples=settings.samples,
        tokens=settings.tokens,
        template_flags=settings.template_flags,
        conversations_at_once=AT_ONCE * max(1, len(groups)),
    )
    template = load_template(settings.target, settings.template_flags)
    say(f"loading the target {settings.target}")
    source = stage_inputs(record)["prepare"]
    with capturing(settings, groups) as engine:
        answers = engine if TRAINABLE[settings.method].captured is not None else AnswersOnly(engine)
        features = FeatureFolder(answers, folder / FEATURES, record.target_hash, source)
        say("the target answers" if settings.answers != "given" else "the target reads the answers that are given")
        stats = prepare(wanted, template, folder / DATA, features, features.keep)
    lost = f"; {len(features.missing)} rows had no room for their states" if features.missing else ""
    say(
        f"{stats['train']['rows']} rows to train on, {stats['valid']['rows']} held out, "
        f"{stats['train']['loss_tokens']} tokens to learn{lost}"
    )


if __name__ == "__main__":
    run_stage(work)
