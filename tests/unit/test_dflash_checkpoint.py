"""DFlash and DSpark drafters that are trained here, on disk: what is written is read again, others are refused."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.tiny_dflash import tiny_dflash, tiny_dspark
from tests.unit.tiny_llama import tiny_llama
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import MODELS
from vllm_specext.training.block.checkpoint import read_shape, read_tensors, write_checkpoint
from vllm_specext.training.block.layouts import DFLASH, DSPARK
from vllm_specext.training.block.shape import BlockDrafterShape

SECTION = "dflash_config"


@pytest.fixture
def shape(tmp_path: Path) -> BlockDrafterShape:
    drafter = tiny_dflash(tiny_llama(6))
    write_checkpoint(tmp_path, drafter.shape, drafter.state_dict(), torch.float32)
    return drafter.shape


def test_what_is_written_is_read_again_and_has_no_weights_of_the_target(
    shape: BlockDrafterShape, tmp_path: Path
) -> None:
    assert read_shape(tmp_path, DFLASH) == shape
    tensors, own = read_tensors(tmp_path), tiny_dflash(tiny_llama(6)).state_dict()
    assert tensors.keys() == own.keys() == shape.parameters().required().keys()
    assert all(torch.equal(tensors[name], own[name]) for name in own)


@pytest.mark.parametrize("confidence", [True, False])
def test_a_dspark_drafter_that_is_written_is_read_again(confidence: bool, tmp_path: Path) -> None:
    drafter = tiny_dspark(tiny_llama(6), confidence=confidence)
    write_checkpoint(tmp_path, drafter.shape, drafter.state_dict(), torch.float32)
    assert read_shape(tmp_path, DSPARK) == drafter.shape
    tensors, own = read_tensors(tmp_path), drafter.state_dict()
    assert tensors.keys() == own.keys() == drafter.shape.trained().keys()
    assert all(torch.equal(tensors[name], own[name]) for name in own)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["DFlashDraftModel"]}, "architectures is .*; a DSpark drafter that is trained here has"),
        ({"sample_from_anchor": False}, "sample_from_anchor is False; a DSpark drafter that is trained here has True"),
        ({"markov_head_type": "rnn"}, "markov_head_type is 'rnn'; a DSpark drafter that is trained here has 'vanilla'"),
        ({"confidence_head_with_markov": False}, "confidence_head_with_markov is False; a DSpark drafter that is"),
        ({"confidence_head_with_markov": None}, "confidence_head_with_markov is None; .* True where it has a"),
        ({"block_size": 1}, "block_size is 1; expected an integer of 2 to 65"),
        ({"markov_rank": 0}, "markov_rank is 0; expected a positive integer"),
        ({"markov_rank": 3}, "has shape .*; expected"),
        ({"enable_confidence_head": False}, "confidence_head.proj.* is read only where config.json has"),
        ({"mask_token_id": 50}, "mask_token_id is 50; expected a token below vocab_size = 50"),
    ],
)
def test_a_dspark_drafter_that_is_another_one_is_refused(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    drafter = tiny_dspark(tiny_llama(6))
    write_checkpoint(tmp_path, drafter.shape, drafter.state_dict(), torch.float32)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConfigurationError, match=expected):
        read_shape(tmp_path, DSPARK)


def test_a_dspark_drafter_without_a_tensor_or_a_key_is_refused(tmp_path: Path) -> None:
    drafter = tiny_dspark(tiny_llama(6))
    kept = {name: x for name, x in drafter.state_dict().items() if name != "confidence_head.proj.bias"}
    write_checkpoint(tmp_path, drafter.shape, kept, torch.float32)
    with pytest.raises(ConfigurationError, match=r"the tensor confidence_head\.proj\.bias is missing"):
        read_shape(tmp_path, DSPARK)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "target_layer_ids"}))
    with pytest.raises(ConfigurationError, match="target_layer_ids is missing"):
        read_shape(tmp_path, DSPARK)


def test_the_embedding_in_a_file_is_left_there(shape: BlockDrafterShape, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    save_file(load_file(path) | {"embed_tokens.weight": torch.zeros(50, 32)}, path)
    assert read_tensors(tmp_path).keys() == shape.parameters().required().keys()


def test_the_bundled_drafter_is_read() -> None:
    found = read_shape(MODELS / "dflash", DFLASH)
    assert (found.block, found.layers, found.target_layers) == (5, 1, 12)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"architectures": ["DFlash2DraftModel"]}, "architectures is .*; a DFlash drafter that is trained here has"),
        ({"model_type": "llama"}, "model_type is 'llama'; a DFlash drafter that is trained here has 'qwen3'"),
        ({"draft_vocab_size": 20}, "draft_vocab_size is 20;"),
        ({"intermediate_size": 8}, "has shape .*; expected"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 and head_dim 8; expected heads that share keys evenly"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "has the type 'linear'"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "layer_types is .* full attention alone"),
        ({"block_size": None}, "block_size is None; expected a positive integer"),
        ({"block_size": 66}, "block_size is 66; expected an integer of 2 to 65"),
        ({SECTION: None}, f"{SECTION} is None; expected an object with"),
        ({SECTION: {"mask_token_id": 50, "target_layer_ids": [1]}}, "mask_token_id is 50; expected a token below"),
        ({SECTION: {"mask_token_id": 1, "target_layer_ids": [3, 1]}}, r"target_layer_ids is \[3, 1\]; .* ascending"),
        ({SECTION: {"mask_token_id": 1, "target_layer_ids": [6]}}, "0 to 5"),
        ({SECTION: {"mask_token_id": 1, "target_layer_ids": "all"}}, "target_layer_ids is 'all'; expected a list"),
        (
            {SECTION: {"mask_token_id": 1, "target_layer_ids": [1], "final_logit_softcapping": 3.0}},
            "dflash_config.final_logit_softcapping is 3.0; a DFlash drafter that is trained here has False or None",
        ),
        ({"logit_scale": 0.25}, "logit_scale is 0.25; a DFlash drafter that is trained here has 1 or"),
        ({"output_multiplier": 2.0}, "output_multiplier is 2.0; a DFlash drafter that is trained here has 1 or"),
        ({"causal": True}, "causal is True; a DFlash drafter that is trained here has False or None"),
    ],
)
def test_a_drafter_that_is_another_one_is_refused(
    shape: BlockDrafterShape, changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    with pytest.raises(ConfigurationError, match=expected):
        read_shape(tmp_path, DFLASH)
