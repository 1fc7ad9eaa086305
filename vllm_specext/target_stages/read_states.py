"""The target reads rows of text and its states are written to a shard: ``python -m
vllm_specext.target_stages.read_states RUN FOLDER``.

``FOLDER`` has ``rows.json``, ``[token ids, loss mask]`` of each; what is written are shards. A process
of its own, so that its engine's memory is free again before another begins.
"""

import json
import sys
from pathlib import Path

from vllm_specext.errors import ConfigurationError
from vllm_specext.preparation.answers import CapturingAnswerer
from vllm_specext.preparation.engine import capturing_llm
from vllm_specext.target_stages.target_engine import engine_arguments, layers_read, plain_errors
from vllm_specext.training.data.row import make_row
from vllm_specext.training.pipeline.record import read_record
from vllm_specext.training.pipeline.stage_process import Say, end_on_sigterm, run_stage

ROWS, STATES = "rows.json", "states.safetensors"


def work(folder: Path, say: Say) -> None:
    end_on_sigterm()
    record, place = read_record(folder), Path(sys.argv[2])
    rows = [
        make_row(ids, mask, str(number)) for number, (ids, mask) in enumerate(json.loads((place / ROWS).read_text()))
    ]
    settings = record.settings
    with plain_errors(settings.target):
        llm = capturing_llm(
            settings.target,
            max(map(len, rows)),
            len(rows),
            layers_read(settings),
            # As the engine with drafts has them.
            feature_dtype="float32" if settings.dtype == "float32" else "bfloat16",
            **engine_arguments(settings),
        )
    answerer = CapturingAnswerer(llm, {"temperature": 0.0})
    if lost := answerer.write(place / STATES, rows, (), record.target_hash, "check"):
        raise ConfigurationError(f"{len(lost)} of {len(rows)} rows had no room for their hidden states.")


if __name__ == "__main__":
    run_stage(work)
