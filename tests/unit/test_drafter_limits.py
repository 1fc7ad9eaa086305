"""What a drafter's files say cannot make a server take memory without bound."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import GRIFFIN_CHAIN, MOA_TREE, MODELS, TARGET
from vllm_specext.methods.checkpoints import MAX_ROPE_FACTOR, read_rope_scaling


@pytest.mark.parametrize("speculative", [GRIFFIN_CHAIN, MOA_TREE], ids=["griffin", "moa"])
def test_the_rotary_table_is_as_long_as_the_targets_context(tmp_path: Path, speculative: dict[str, Any]) -> None:
    from vllm.engine.arg_utils import EngineArgs

    from vllm_specext.plugin import register

    register()
    drafter = shutil.copytree(MODELS / speculative["method"], tmp_path / "drafter")
    config = json.loads((drafter / "config.json").read_text()) | {"max_position_embeddings": 2**31}
    (drafter / "config.json").write_text(json.dumps(config))
    arguments = EngineArgs(
        model=str(TARGET),
        dtype="float32",
        max_model_len=512,
        kv_cache_memory_bytes=1 << 28,
        speculative_config=speculative | {"model": str(drafter)},
    )
    made = arguments.create_engine_config().speculative_config
    assert made.draft_model_config.hf_config.max_position_embeddings == 512
    assert made.draft_model_config.max_model_len == 512


@pytest.mark.parametrize("kind", ["linear", "llama3"])
def test_a_rotary_factor_without_bound_is_refused(kind: str) -> None:
    rope = {"rope_type": kind, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    assert read_rope_scaling("config.json: rope_scaling", rope | {"factor": 64.0}, ["linear", "llama3"]) is not None
    with pytest.raises(ConfigurationError, match=rf"factor = 1000000\.0; at most {MAX_ROPE_FACTOR}"):
        read_rope_scaling("config.json: rope_scaling", rope | {"factor": 1e6}, ["linear", "llama3"])
