"""The target beside a training, ``python -m vllm_specext.target_stages.stream RUN RING``: it reads the prepared rows
in the order in which the training needs them, and keeps their hidden states for as long as that does.

The first training process starts it and ends it.
"""

import os
import sys
import time
from pathlib import Path

import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.target_stages.target_engine import capturing, device_groups
from vllm_specext.training.data.folder import read_data
from vllm_specext.training.pipeline.devices import visible_devices
from vllm_specext.training.pipeline.folder import DATA
from vllm_specext.training.pipeline.record import read_record, stage_inputs
from vllm_specext.training.pipeline.stage_process import Say, end_on_sigterm, run_stage
from vllm_specext.training.pipeline.streaming import visits_of
from vllm_specext.training.streaming.ring import POLL, Ring
from vllm_specext.training.streaming.supply import Supply


def work(folder: Path, say: Say) -> None:
    end_on_sigterm()
    starter, ring = os.getppid(), Ring(Path(sys.argv[2]))
    record = read_record(folder)
    settings, source = record.settings, stage_inputs(record)["prepare"]
    try:
        rows = list(read_data(folder / DATA, "train"))
        groups = device_groups(visible_devices(torch.cuda.device_count()), settings.tensor_parallel)
        with capturing(settings, groups) as (engine, *_):
            supply = Supply(
                visits_of(rows, settings),
                rows,
                ring,
                lambda path, block: engine.write(path, block, (), record.target_hash, source),
                record.processes,
                settings.recipe.packs,
            )
            while os.getppid() == starter:
                if not supply.turn():
                    time.sleep(POLL)
    except ConfigurationError as error:
        ring.refuse(str(error))
        raise


if __name__ == "__main__":
    run_stage(work)
