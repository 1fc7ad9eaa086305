"""EAGLE-3 drafters that are trained here, on disk: what is written is read again, and other drafters are refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.tiny_eagle3 import tiny_eagle3
from tests.unit.tiny_llama import tiny_llama
from vllm_specext.convert.eagle3 import LAYER_IDS as LAYERS
from vllm_specext.errors import ConfigurationError
from vllm_specext.training.eagle3.checkpoint import read_shape, read_tensors, write_checkpoint
from vllm_specext.training.eagle3.model import Eagle3Drafter
from vllm_specext.training.eagle3.shape import default_layers, layers_to_read


@pytest.fixture
def drafter(tmp_path: Path) -> Eagle3Drafter:
    drafter = tiny_eagle3(tiny_llama(6))
    write_checkpoint(tmp_path, drafter.shape, drafter.state_dict(), torch.float32)
    return drafter


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_tensors(folder: Path, **tensors: torch.Tensor) -> None:
    path = folder / "model.safetensors"
    save_file(load_file(path) | {name.replace("__", "."): tensor for name, tensor in tensors.items()}, path)


def test_what_is_written_is_read_again_and_has_no_weights_of_the_target(drafter: Eagle3Drafter, tmp_path: Path) -> None:
    assert read_shape(tmp_path, 6) == drafter.shape
    tensors, own = read_tensors(tmp_path), drafter.state_dict()
    assert tensors.keys() == own.keys() == drafter.shape.parameters().required().keys()
    assert all(torch.equal(tensors[name], own[name]) for name in own)


def test_another_layout_of_the_same_drafter_is_read(drafter: Eagle3Drafter, tmp_path: Path) -> None:
    own = drafter.state_dict()
    renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in own.items()}
    save_file({**renamed, "embed_tokens.weight": torch.zeros(50, 32)}, tmp_path / "model.safetensors")
    change_config(tmp_path, **{LAYERS: None})
    assert read_shape(tmp_path, 12).layers == default_layers(12)
    assert read_tensors(tmp_path).keys() == own.keys()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"logit_scale": 0.25}, "logit_scale is 0.25; an EAGLE-3 drafter that is trained here has None or 1"),
        ({"architectures": ["Qwen3ForCausalLM"]}, "lacks tensors layers.0.self_attn.q_norm.weight"),
        ({"architectures": ["Other"]}, "architectures is .*; expected a list with one of"),
        ({"num_hidden_layers": 2}, "lacks tensors layers.1.self_attn"),
        ({"attention_bias": True}, "lacks tensors layers.0.self_attn.q_proj.bias"),
        ({"draft_vocab_size": 60}, r"draft_vocab_size is 60; expected an integer in 1\.\.50"),
        ({"draft_vocab_size": 0}, r"draft_vocab_size is 0; expected an integer in 1\.\.50"),
        ({"draft_vocab_size": 20}, "lacks tensors lm_head.weight, d2t"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "eagle_config.use_aux_hidden_state is False"),
        ({"eagle_config": {"norm_before_fc": True}}, "lacks tensor input_norm.weight"),
        ({"eagle_config": [1]}, r"eagle_config is \[1\]; expected a JSON object"),
        ({"norm_output": True}, "norm_output is True; an EAGLE-3 drafter that is trained here has False"),
        ({"target_hidden_size": 32, "hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"intermediate_size": 8}, "has shape .*; expected"),
        ({"num_key_value_heads": 3}, "has shape .*; expected"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "has the type 'linear'"),
        ({LAYERS: [1, 2]}, "has shape .*; expected"),
        ({LAYERS: [4, 2, 1]}, "expected ascending numbers of the target's layers"),
    ],
)
def test_a_drafter_that_is_another_one_is_refused(
    drafter: Eagle3Drafter, changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    change_config(tmp_path, **changes)
    with pytest.raises(ConfigurationError, match=expected):
        read_shape(tmp_path, 6)


TOKENS = [0, 3, 4, 7, *range(20, 36)]


@pytest.mark.parametrize("tokens", [TOKENS, None], ids=["of some tokens", "of all"])
def test_an_output_layer_of_the_drafters_own_is_kept(tokens: list[int] | None, tmp_path: Path) -> None:
    drafter = tiny_eagle3(tiny_llama(6), own_head=True, tokens=tokens)
    own = drafter.own_head()
    assert own is not None
    assert own.tokens.tolist() == (tokens or list(range(50)))
    assert torch.equal(own.weight, tiny_llama(6).lm_head.weight[own.tokens])
    write_checkpoint(tmp_path, drafter.shape, drafter.state_dict(), torch.bfloat16)
    assert read_shape(tmp_path, 6) == drafter.shape
    again = Eagle3Drafter(drafter.shape)
    again.load_state_dict(read_tensors(tmp_path))
    kept = again.own_head()
    assert kept is not None
    assert kept.tokens.tolist() == own.tokens.tolist()
    assert torch.equal(kept.weight, own.weight.bfloat16().float())
    files = load_file(tmp_path / "model.safetensors")
    if tokens is None:
        assert not files.keys() & {"d2t", "t2d"}
    else:
        assert files["t2d"].nonzero().flatten().tolist() == tokens
        assert files["d2t"].dtype == torch.int64
        assert json.loads((tmp_path / "config.json").read_text())["draft_vocab_size"] == len(tokens)


def test_a_released_drafter_is_read(tmp_path: Path) -> None:
    """In the layout of SpecForge, with all that its files have."""
    drafter = tiny_eagle3(tiny_llama(6), own_head=True, tokens=TOKENS)
    write_checkpoint(tmp_path, drafter.shape, drafter.state_dict(), torch.bfloat16)
    files = load_file(tmp_path / "model.safetensors")
    renamed = {name.replace("layers.0.", "midlayer."): tensor for name, tensor in files.items()}
    save_file({**renamed, "embed_tokens.weight": torch.zeros(50, 32)}, tmp_path / "model.safetensors")
    nested = {LAYERS: [1, 2, 4], "use_aux_hidden_state": True, "norm_before_fc": False}
    change_config(tmp_path, **{LAYERS: None, "eagle_config": nested, "architectures": ["LlamaForCausalLMEagle3"]})
    shape = read_shape(tmp_path, 6)
    assert shape.layers == (2, 3, 5)  # the layers whose output is read
    assert shape == replace(drafter.shape, layers=(2, 3, 5))
    tensors = read_tensors(tmp_path)
    assert tensors.keys() == drafter.state_dict().keys()
    assert torch.equal(tensors["lm_head.weight"], files["lm_head.weight"])


@pytest.mark.parametrize("before_residual", [True, False])
def test_a_drafter_of_speculators_is_read(before_residual: bool, tmp_path: Path) -> None:
    shape = replace(
        tiny_eagle3(tiny_llama(6), own_head=True, tokens=TOKENS).shape, norm_before_residual=before_residual
    )
    tensors = tiny_eagle3(tiny_llama(6), own_head=True, tokens=TOKENS).state_dict()
    write_checkpoint(tmp_path, shape, tensors, torch.bfloat16)
    assert read_shape(tmp_path, 6) == shape
    plain = json.loads((tmp_path / "config.json").read_text())
    layer = {key: plain.pop(key) for key in set(plain) - {"draft_vocab_size", LAYERS, "torch_dtype"}}
    outer = {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "norm_before_residual": before_residual,
    }
    (tmp_path / "config.json").write_text(json.dumps(plain | outer | {"transformer_layer_config": layer}))
    change_tensors(tmp_path, embed_tokens__weight=torch.zeros(50, 32))
    assert read_shape(tmp_path, 6) == shape
    assert read_tensors(tmp_path).keys() == tensors.keys()


def test_layers_are_vllms_default_wherever_the_target_has_enough() -> None:
    assert layers_to_read(32) == default_layers(32) == (2, 16, 29)
    for count in range(4, 40):
        layers = layers_to_read(count)
        assert list(layers) == sorted(set(layers))
        assert 1 <= layers[0] <= layers[-1] < count
        assert layers == default_layers(count) or count < 7
    with pytest.raises(ConfigurationError, match=r"num_hidden_layers 3, .* at least 4 are needed"):
        layers_to_read(3)
