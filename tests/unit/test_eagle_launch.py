"""EAGLE drafters on a launch: vLLM's own configuration of the drafter, and targets and drafters that are refused."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS, TARGET
from vllm_specext.plugin import register

EAGLE3 = {"method": "eagle3-tree", "model": str(MODELS / "eagle3"), "num_speculative_tokens": 4, "tree_top_k": 1}
LAYERS = "eagle_aux_hidden_state_layer_ids"


def launched(speculative: dict[str, Any], target: Path = TARGET) -> VllmConfig:
    register()
    arguments = EngineArgs(
        model=str(target),
        dtype="float32",
        max_model_len=512,
        kv_cache_memory_bytes=1 << 28,
        speculative_config=speculative,
    )
    return arguments.create_engine_config()


def with_keys(folder: Path, source: Path, **keys: Any) -> Path:
    shutil.copytree(source, folder)
    config = json.loads((folder / "config.json").read_text()) | keys
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_the_drafter_is_configured_as_for_vllms_own_method() -> None:
    """What vLLM would find out later is said: the target's layers, hidden size and context."""
    ours = launched(EAGLE3).speculative_config
    stock = launched({"method": "eagle3", "model": EAGLE3["model"], "num_speculative_tokens": 4}).speculative_config
    assert ours is not None
    assert stock is not None
    assert (ours.method, stock.method) == ("eagle3-tree", "eagle3")
    assert ours.draft_model_config.architectures == ["Eagle3LlamaForCausalLM"]
    for name in ("architectures", "max_model_len", "dtype"):
        one, other = (getattr(config.draft_model_config, name) for config in (ours, stock))
        assert one == other
    said = {LAYERS: [2, 6, 9], "num_aux_hidden_states": 3, "target_hidden_size": 256, "max_position_embeddings": 512}
    own, theirs = (config.draft_model_config.hf_config.to_dict() for config in (ours, stock))
    assert own == theirs | said


def test_the_layers_that_are_read_are_part_of_what_is_compiled(tmp_path: Path) -> None:
    """The target's graph gives other states then."""
    hashes = {
        launched(
            EAGLE3 | {"model": str(with_keys(tmp_path / str(last), MODELS / "eagle3", **{LAYERS: [2, 6, last]}))}
        ).speculative_config.compute_hash()
        for last in (8, 9)
    }
    assert len(hashes) == 2
    assert all(found.startswith("eagle3-tree-") for found in hashes)


def test_a_target_without_hidden_states_of_its_layers_is_refused(tmp_path: Path) -> None:
    sizes = {"n_positions": 1024, "n_embd": 256, "n_layer": 4, "n_head": 4}
    target = with_keys(tmp_path / "gpt2", TARGET, architectures=["GPT2LMHeadModel"], model_type="gpt2", **sizes)
    with pytest.raises(ConfigurationError, match="'GPT2LMHeadModel', because vLLM's class for it does not give hidden"):
        launched(EAGLE3, target)
