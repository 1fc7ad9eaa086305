"""What an EAGLE drafter's configuration means to vLLM's classes is taken over, and what they would not honour is a
sentence with the key's name."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub.utils import filter_repo_objects

from tests.unit.eagle_folders import (
    CONTEXT,
    DRAFTED,
    LLAMA,
    OWN_VOCABULARY,
    TARGET_D,
    TARGET_LAYERS,
    VOCABULARY,
    D,
    eagle1,
    eagle3,
    edit_config,
    nested,
    prepared,
    refusal,
    safeailab,
    write,
)
from vllm_specext.engine.registrations import register_drafter_formats
from vllm_specext.methods.eagle import prepare as module
from vllm_specext.methods.stock.checkpoint import FILES

AUX = "eagle_aux_hidden_state_layer_ids"
OF_SPECULATORS = ("speculators_config", "transformer_layer_config")


@pytest.fixture(autouse=True)
def any_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "check_target", lambda method, launch: None)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # vLLM's reader tries again


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    safeailab(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("keys", "states", "layers"),
    [
        ({}, 3, [2, 6, 9]),
        ({AUX: []}, 3, [2, 6, 9]),
        ({AUX: [1, 5, 12]}, 3, [1, 5, 12]),
        ({AUX: [0, 4]}, 2, [0, 4]),
        ({"eagle_config": {AUX: [1, 5, 8]}}, 3, [2, 6, 9]),
        ({"eagle_config": {AUX: [2, 6, 12]}}, 3, [2, 6, 12]),
        ({AUX: [3, 4, 5], "eagle_config": {AUX: [1, 5, 8]}}, 3, [3, 4, 5]),
        ({"eagle_config": {AUX: [1, 5, 8, 11]}, "num_aux_hidden_states": 4}, 4, [2, 6, 9, 12]),
    ],
)
def test_the_targets_layers_are_where_vllm_reads_them(
    keys: dict[str, Any], states: int, layers: list[int], tmp_path: Path
) -> None:
    overrides = prepared(write(tmp_path, LLAMA | OWN_VOCABULARY | keys, eagle3(states=states)))
    assert overrides == {
        AUX: layers,
        "num_aux_hidden_states": states,
        "target_hidden_size": TARGET_D,
        "max_position_embeddings": CONTEXT,
    }


def test_speculators_nested_keys_are_read(tmp_path: Path) -> None:
    write(tmp_path, nested(eagle_aux_hidden_state_layer_ids=[1, 4, 7]), eagle3("layers.0."))
    assert prepared(tmp_path)[AUX] == [1, 4, 7]


@pytest.mark.parametrize("config", [nested(), LLAMA | OWN_VOCABULARY], ids=["nested", "at the top"])
def test_a_checkpoint_may_name_our_method(config: dict[str, Any], tmp_path: Path) -> None:
    register_drafter_formats()
    keys = {key: nested()[key] for key in OF_SPECULATORS}
    prepared(write(tmp_path, keys | config | {"speculators_model_type": "eagle3-tree"}, eagle3("layers.0.")))


def test_an_older_vllm_checkpoint_of_eagle_1_is_read(tmp_path: Path) -> None:
    write(tmp_path, {"model_type": "eagle", "model": LLAMA}, eagle1())
    assert prepared(tmp_path, "eagle-tree") == {"max_position_embeddings": CONTEXT}


@pytest.mark.parametrize(
    ("rope", "overrides"),
    [
        ({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}, True),
        ({"rope_type": "yarn", "factor": 4.0}, True),
        ({"rope_type": "dynamic", "factor": 2.0}, False),
    ],
)
def test_positions_end_with_the_targets_context_unless_they_change_the_angles(
    rope: dict[str, Any], overrides: bool, checkpoint: Path
) -> None:
    rope |= {"rope_theta": 1e4, "original_max_position_embeddings": 32}
    edit_config(rope_scaling=rope, max_position_embeddings=2**20)(checkpoint)
    assert ("max_position_embeddings" in prepared(checkpoint)) is overrides


@pytest.mark.parametrize(
    "keys",
    [{"layer_types": ["sliding_attention"], "sliding_window": 8}, {"model_type": "gpt_oss", "attention_bias": False}],
    ids=["said", "by gpt-oss, whose first layer has one"],
)
def test_layers_with_a_window_are_accepted(keys: dict[str, Any], checkpoint: Path) -> None:
    edit_config(head_dim=4, **keys)(checkpoint)
    prepared(checkpoint)


def test_the_remote_code_that_speculators_names_is_no_obstacle(tmp_path: Path) -> None:
    prepared(write(tmp_path, nested(), eagle3("layers.0.")), trust_remote_code=True)


ROPE = {"rope_type": "linear", "rope_theta": 1e4}
UNFIT: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another vocabulary": ({"vocab_size": 41}, ["vocab_size is 41", "target has 40"]),
    "no vocabulary": ({"vocab_size": None}, ["config.json", "'vocab_size' expected int"]),
    "more draft tokens than tokens": ({"draft_vocab_size": 41}, ["draft_vocab_size is 41", "vocab_size = 40"]),
    "no draft tokens": ({"draft_vocab_size": 0}, ["draft_vocab_size is 0", "positive integer"]),
    "another hidden size": ({"hidden_size": 24}, ["hidden_size is 24", "target's is 16", "target_hidden_size"]),
    "another target's hidden size": ({"target_hidden_size": 24}, ["target_hidden_size is 24", "target's is 16"]),
    "a hidden size as text": ({"hidden_size": "16"}, ["hidden_size"]),
    "no heads": ({"num_attention_heads": 0}, ["config.json"]),
    "no layers": ({"num_hidden_layers": 0}, ["num_hidden_layers is 0"]),
    "layers without end": ({"num_hidden_layers": 2**20}, ["num_hidden_layers is 1048576", "at most 64"]),
    "a negative norm": ({"rms_norm_eps": -1.0}, ["rms_norm_eps is -1.0"]),
    "another activation": ({"hidden_act": "gelu"}, ["hidden_act is 'gelu'", "'silu'"]),
    "layers that are no numbers": ({AUX: [1, "5", 8]}, [AUX, "'5'", "integers"]),
    "layers that are no list": ({AUX: 3}, [AUX, "3", "integers"]),
    "layers twice": ({AUX: [1, 5, 5]}, [AUX, "[1, 5, 5]", "ascending"]),
    "layers in another order": ({AUX: [8, 5, 1]}, [AUX, "[8, 5, 1]", "ascending"]),
    "a layer too many": ({AUX: [1, 5, 13]}, [AUX, "[1, 5, 13]", f"{TARGET_LAYERS} layers"]),
    "a nested layer too many": ({"eagle_config": {AUX: [1, 5, 12]}}, [f"eagle_config.{AUX}", "[1, 5, 12]"]),
    "a layer before the first": ({AUX: [-1, 5, 8]}, [AUX, "[-1, 5, 8]"]),
    "fewer layers than fc reads": ({AUX: [1, 5]}, ["fc.weight", "[16, 48]", "[16, 32]"]),
    "another number of layers": ({"num_aux_hidden_states": 4}, ["num_aux_hidden_states is 4", "3 of the target's"]),
    "no states of the target's layers": (
        {"eagle_config": {"use_aux_hidden_state": False}},
        ["eagle_config.use_aux_hidden_state is False"],
    ),
    "a switch as text": ({"eagle_config": {"use_aux_hidden_state": "no"}}, ["use_aux_hidden_state is 'no'"]),
    "a nested list": ({"eagle_config": [1]}, ["eagle_config is [1]", "JSON object"]),
    "a norm that is nested": ({"eagle_config": {"fc_norm": True}}, ["eagle_config.fc_norm is True", "at the top"]),
    "a norm as text": ({"norm_output": "yes"}, ["norm_output is 'yes'", "true or false"]),
    "a residual as a number": ({"norm_before_residual": 1}, ["norm_before_residual is 1", "true or false"]),
    "a window without a size": ({"layer_types": ["sliding_attention"]}, ["sliding_window is None"]),
    "an empty window": ({"layer_types": ["sliding_attention"], "sliding_window": 0}, ["sliding_window is 0"]),
    "chunks": ({"layer_types": ["chunked_attention"]}, ["layer_types is ['chunked_attention']", "'full_attention'"]),
    "fewer kinds than layers": ({"layer_types": ["full_attention"], "num_hidden_layers": 2}, ["layer_types"]),
    "quantised weights": ({"quantization_config": {"quant_method": "fp8"}}, ["quantization_config", "unquantised"]),
    "P-EAGLE's token": ({"pard_token": 7}, ["pard_token is 7", "P-EAGLE"]),
    "P-EAGLE's class": ({"architectures": ["PEagleDraftModel"]}, ["PEagleDraftModel", "P-EAGLE"]),
    "P-EAGLE's class in vLLM": ({"architectures": ["PeagleLlamaForCausalLM"]}, ["PeagleLlama", "P-EAGLE"]),
    "a class that vLLM lacks": (
        {"architectures": ["FalconForCausalLM"]},
        ["'Eagle3FalconForCausalLM'", "Eagle3LlamaForCausalLM", "LlamaForCausalLMEagle3", "Eagle3Qwen3ForCausalLM"],
    ),
    "two classes": ({"architectures": ["LlamaForCausalLM", "Qwen3ForCausalLM"]}, ["config.json", "'eagle3'"]),
    "no list of classes": ({"architectures": "LlamaForCausalLM"}, ["architectures is 'LlamaForCausalLM'"]),
    "an unknown model type": ({"model_type": "abc"}, ["config.json", "'eagle3'", "abc"]),
    "a rope without end": ({"rope_scaling": ROPE | {"factor": 1e9}}, ["rope_parameters.factor", "1024"]),
    "positions without end": (
        {"rope_scaling": ROPE | {"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings": 2**31},
        ["max_position_embeddings"],
    ),
    "speculators' keys of another method": ({"speculators_model_type": "griffin"}, ["'griffin'", "'eagle3'"]),
}


@pytest.mark.parametrize("case", UNFIT)
def test_what_vllms_class_would_not_honour_is_refused(case: str, checkpoint: Path) -> None:
    keys, fragments = UNFIT[case]
    edit_config(**keys)(checkpoint)
    message = refusal(checkpoint)
    assert [fragment for fragment in fragments if fragment not in message] == [], message


UNFIT_SPECULATORS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "P-EAGLE": ({"speculators_model_type": "peagle", "mask_token_id": 3}, ["'peagle'", "P-EAGLE"]),
    "DFlash": (
        {"speculators_model_type": "dflash"},
        ["speculators_model_type is 'dflash'", "loads 'eagle3' and 'eagle3-tree'"],
    ),
    "EAGLE-1": (
        {"speculators_model_type": "eagle"},
        ["speculators_model_type is 'eagle'", "loads 'eagle3' and 'eagle3-tree'"],
    ),
    "no type": (
        {"speculators_model_type": ...},
        ["speculators_model_type is None", "loads 'eagle3' and 'eagle3-tree'"],
    ),
    "no layer": ({"transformer_layer_config": ...}, ["transformer_layer_config is None", "JSON object"]),
    "a layer that is a list": ({"transformer_layer_config": []}, ["transformer_layer_config is []", "JSON object"]),
    "no configuration": ({"speculators_config": ...}, ["speculators_config is None", "JSON object"]),
    "an empty layer": ({"transformer_layer_config": {}}, ["vocab_size is None"]),
    "a layer that vLLM lacks": (
        {"transformer_layer_config": {"model_type": "mamba"}},
        ["config.json", "Unsupported model_type mamba"],
    ),
    "another vocabulary": (
        {"transformer_layer_config": nested({"vocab_size": 41})["transformer_layer_config"]},
        ["vocab_size is 41"],
    ),
}


@pytest.mark.parametrize("case", UNFIT_SPECULATORS)
def test_speculators_that_vllm_would_stumble_over_are_refused(case: str, tmp_path: Path) -> None:
    keys, fragments = UNFIT_SPECULATORS[case]
    edit_config(**keys)(write(tmp_path, nested(), eagle3("layers.0.")))
    message = refusal(tmp_path)
    assert [fragment for fragment in fragments if fragment not in message] == [], message


def test_an_eagle_3_drafter_of_speculators_is_no_eagle_1_drafter(tmp_path: Path) -> None:
    message = refusal(write(tmp_path, nested(), eagle3("layers.0.")), "eagle-tree")
    assert "speculators_model_type is 'eagle3'; method 'eagle-tree' loads 'eagle' and 'eagle-tree'" in message


@pytest.mark.parametrize(
    ("keys", "fragments"),
    [
        ({"hidden_size": 24}, ["hidden_size is 24", "target's is 16"]),
        ({"layer_types": ["full_attention"]}, ["layer_types", "EAGLE"]),
        ({"architectures": ["Llama4ForCausalLM"]}, ["'EagleLlama4ForCausalLM'", "EagleLlamaForCausalLM"]),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_eagle_1_drafters_that_vllms_class_cannot_be_are_refused(
    keys: dict[str, Any], fragments: list[str], tmp_path: Path
) -> None:
    edit_config(**keys)(write(tmp_path, LLAMA, eagle1()))
    message = refusal(tmp_path, "eagle-tree")
    assert [fragment for fragment in fragments if fragment not in message] == [], message


def test_code_that_a_drafter_names_is_never_run(checkpoint: Path) -> None:
    edit_config(auto_map={"AutoConfig": "code.Config"}, model_type="llama")(checkpoint)
    (checkpoint / "code.py").write_text("raise SystemExit('the code was run')\n")
    prepared(checkpoint)
    message = refusal(checkpoint, trust_remote_code=True)
    assert "auto_map" in message
    assert "--trust-remote-code" in message


def test_the_hub_gives_all_that_a_checkpoint_consists_of() -> None:
    """And neither optimizers nor figures."""
    wanted = ["config.json", "model.safetensors", "model-00001-of-00002.safetensors", "model.safetensors.index.json"]
    wanted += ["pytorch_model.bin", "pytorch_model-00001-of-00002.bin"]
    others = ["README.md", "training_state.pt", "optimizer.bin", "figures/acceptance.png", "modeling_eagle.py"]
    assert list(filter_repo_objects(wanted + others, allow_patterns=list(FILES))) == wanted


def test_the_sizes_of_this_file_are_told_apart() -> None:
    """A test in which two of them are the same could not fail."""
    assert len({VOCABULARY, DRAFTED, D, TARGET_LAYERS, CONTEXT}) == 5
    assert json.loads(json.dumps(nested()))["transformer_layer_config"]["vocab_size"] == VOCABULARY
    assert eagle3()["d2t"].dtype == torch.int64
