"""MoA checkpoints: what is written can be read, and every kind of damage is one sentence that names its place."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.layers import RopeScaling
from vllm_specext.methods.moa.checkpoint import (
    LayerShape,
    MoAShape,
    TargetSizes,
    check_against_target,
    read_shape,
    read_tensors,
    write_checkpoint,
)
from vllm_specext.methods.moa.model import MoADrafter

SHAPE = MoAShape(
    hidden_size=16,
    kv_width=24,
    self_attention=LayerShape(width=16, heads=4, kv_heads=2, head_dim=4, mlp_size=20),
    cross_attention=LayerShape(width=16, heads=4, kv_heads=4, head_dim=4, mlp_size=22),
    layer_self_attention=LayerShape(width=24, heads=4, kv_heads=1, head_dim=6, mlp_size=10),
    vocab_size=19,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    max_position_embeddings=64,
    target_layer_inference=1,
    num_target_layers=3,
)
VARIANTS = {
    "llama": SHAPE,
    "qwen2": replace(
        SHAPE,
        self_attention=replace(SHAPE.self_attention, qkv_bias=True),
        layer_self_attention=replace(SHAPE.layer_self_attention, qkv_bias=True),  # type: ignore[type-var]
    ),
    "without LSA": replace(SHAPE, layer_self_attention=None),
    "long context": replace(SHAPE, rope_scaling=RopeScaling("llama3", 8.0, 1.0, 4.0, 32)),
    "official": replace(SHAPE, target_layer_inference=0, num_target_layers=None),
}
TARGET = TargetSizes(hidden_size=16, vocab_size=19, layers=3, kv_width=24)
KEY = "layer_self_attention.self_attn.k_proj.weight"
DEFINE_WIDTHS = ("Ekv2E.weight", "self_attn.q_proj.weight", "self_attn.k_proj.weight")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    write_checkpoint(tmp_path, SHAPE, MoADrafter(SHAPE).state_dict(), torch.float32)
    return tmp_path


def change_tensors(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def change_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


def refusal(directory: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_shape(directory)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("shape", VARIANTS.values(), ids=VARIANTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_written_is_read_back(tmp_path: Path, shape: MoAShape, dtype: torch.dtype) -> None:
    model = MoADrafter(shape)
    write_checkpoint(tmp_path, model.shape, model.state_dict(), dtype)
    assert read_shape(tmp_path) == shape
    tensors = read_tensors(tmp_path)
    assert tensors.keys() == model.state_dict().keys() == shape.tensor_shapes().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensors[name], tensor.to(dtype))
        assert tuple(tensor.shape) == shape.tensor_shapes()[name]


def test_the_names_are_those_of_the_official_code(checkpoint: Path) -> None:
    names = set(read_tensors(checkpoint))
    assert len(names) == 29
    assert {"Ekv2E.weight", "Ekv2E.bias", "cross_attention.self_attn.o_proj.weight"} < names
    assert {"self_attention.input_layernorm.weight", "layer_self_attention.mlp.gate_proj.weight"} < names
    config = json.loads((checkpoint / "config.json").read_text())
    assert config["model_type"] == "moa_spec"
    assert config["architectures"] == ["MOASpecModel"]
    assert config["kv_hidden_size"] == 24
    assert config["cross_attention_num_key_value_heads"] == 4
    assert config["layer_self_attention_intermediate_size"] == 10
    assert config["disable_LSA"] is False
    assert config["target_layer_inference"] == 1


def test_qwen2_has_no_biases_in_cross_attention() -> None:
    biases = {name for name in VARIANTS["qwen2"].tensor_shapes() if name.endswith("_proj.bias")}
    assert {name.split(".")[0] for name in biases} == {"self_attention", "layer_self_attention"}
    assert len(biases) == 6


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_pickled_checkpoint_reads_the_same(checkpoint: Path, zipped: bool) -> None:
    before = read_tensors(checkpoint)
    torch.save(before, checkpoint / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    (checkpoint / "model.safetensors").unlink()
    assert read_shape(checkpoint) == SHAPE
    after = read_tensors(checkpoint)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_widths_come_from_the_tensors_not_from_the_configuration(checkpoint: Path) -> None:
    """The official configuration class has defaults that no checkpoint has."""
    change_config(checkpoint, hidden_size=4096, kv_hidden_size=1024, disable_LSA=True)
    for layer in ("self_attention", "cross_attention", "layer_self_attention"):
        change_config(checkpoint, **{f"{layer}_num_key_value_heads": 8, f"{layer}_intermediate_size": 7168})
    assert read_shape(checkpoint) == SHAPE


def test_an_official_configuration_is_for_no_target_layers(checkpoint: Path) -> None:
    change_config(checkpoint, target_layer_inference="absent", num_target_layers="absent")
    assert read_shape(checkpoint) == VARIANTS["official"]


@pytest.mark.parametrize("name", SHAPE.tensor_shapes())
def test_each_missing_tensor_is_named(checkpoint: Path, name: str) -> None:
    change_tensors(checkpoint, lambda t: t.pop(name))
    assert f"lacks tensor {name}." in refusal(checkpoint)
    with pytest.raises(ConfigurationError, match=name):
        read_tensors(checkpoint)


@pytest.mark.parametrize("name", [name for name in SHAPE.tensor_shapes() if not name.endswith(DEFINE_WIDTHS)])
def test_each_misshapen_tensor_is_named_with_both_shapes(checkpoint: Path, name: str) -> None:
    """Those that define widths have tests of their own."""
    rows, *rest = SHAPE.tensor_shapes()[name]
    wrong = [rows, rest[0] + 1] if rest else [rows + 1]
    change_tensors(checkpoint, lambda t: t.update({name: torch.zeros(wrong)}))
    assert f"tensor {name} has shape {wrong}; expected {[rows, *rest]}" in refusal(checkpoint)


@pytest.mark.parametrize(
    ("name", "wrong", "named", "expected"),
    [
        ("self_attention.self_attn.q_proj.weight", [16, 15], "self_attention.self_attn.q_proj.weight", [16, 16]),
        ("cross_attention.self_attn.k_proj.weight", [16, 15], "cross_attention.self_attn.k_proj.weight", [16, 16]),
        ("layer_self_attention.self_attn.q_proj.weight", [32, 24], KEY, None),
        ("layer_self_attention.self_attn.q_proj.weight", [24, 32], "layer_self_attention.self_attn.q_proj", [24, 24]),
        (KEY, [12, 24], "layer_self_attention.self_attn.v_proj.weight", [12, 24]),
        ("Ekv2E.weight", [16, 32], "layer_self_attention.input_layernorm.weight", [32]),
        ("Ekv2E.weight", [12, 24], "self_attention.input_layernorm.weight", [12]),
    ],
)
def test_widths_that_do_not_fit_each_other_are_named(
    checkpoint: Path, name: str, wrong: list[int], named: str, expected: list[int] | None
) -> None:
    change_tensors(checkpoint, lambda t: t.update({name: torch.zeros(wrong)}))
    message = refusal(checkpoint)
    assert f"tensor {named}" in message
    assert expected is None or f"expected {expected}" in message


@pytest.mark.parametrize("rows", [4, 9, 18])
def test_key_rows_that_do_not_fit_the_heads_are_refused(checkpoint: Path, rows: int) -> None:
    change_tensors(checkpoint, lambda t: t.update({KEY: torch.zeros(rows, 24)}))
    assert f"tensor {KEY} has {rows} rows" in refusal(checkpoint)


def test_half_an_lsa_is_refused(checkpoint: Path) -> None:
    def keep_mlp(tensors: dict[str, Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("layer_self_attention.self_attn")]:
            del tensors[name]

    change_tensors(checkpoint, keep_mlp)
    assert "lacks tensors layer_self_attention.self_attn.q_proj.weight" in refusal(checkpoint)


def test_a_bias_in_one_layer_alone_is_refused(checkpoint: Path) -> None:
    name = "cross_attention.self_attn.q_proj.bias"
    change_tensors(checkpoint, lambda t: t.update({name: torch.zeros(16)}))
    assert "lacks tensors self_attention.self_attn.q_proj.bias" in refusal(checkpoint)


def test_an_unexpected_tensor_is_named(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda t: t.update({"embed_tokens.weight": torch.zeros(19, 16)}))
    assert "has the unexpected tensor embed_tokens.weight" in refusal(checkpoint)


def test_another_kind_of_drafter_is_named_as_such(checkpoint: Path) -> None:
    save_file({"fc.weight": torch.zeros(16, 32)}, checkpoint / "model.safetensors")
    assert "is not a MoA checkpoint: it lacks tensors self_attention.input_layernorm.weight" in refusal(checkpoint)


def test_integers_are_refused(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda t: t.update({KEY: t[KEY].to(torch.int8)}))
    assert f"tensor {KEY} does not hold floating-point numbers" in refusal(checkpoint)


def test_an_empty_tensor_is_refused(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda t: t.update({KEY: torch.zeros(6, 0)}))
    assert f"tensor {KEY} has shape [6, 0]" in refusal(checkpoint)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", "absent"),
        ("num_attention_heads", 5),
        ("num_attention_heads", True),
        ("vocab_size", "absent"),
        ("vocab_size", 0),
        ("rms_norm_eps", "absent"),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", "absent"),
        ("rope_theta", -1.0),
        ("max_position_embeddings", None),
        ("target_layer_inference", -1),
        ("target_layer_inference", 1.5),
        ("target_layer_inference", False),
        ("target_layer_inference", None),
        ("num_target_layers", 0),
        ("num_target_layers", None),
        ("rope_scaling", {"type": "yarn", "factor": 2.0}),
        ("rope_scaling", {"rope_type": ["linear"], "factor": 2.0}),
        ("rope_scaling", {"type": "linear"}),
        ("rope_scaling", {"type": "linear", "factor": "2"}),
        ("rope_scaling", {"type": "linear", "factor": float("inf")}),
        ("rope_scaling", [1]),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0}),
    ],
)
def test_a_bad_configuration_value_is_named(checkpoint: Path, key: str, value: object) -> None:
    change_config(checkpoint, **{key: value})
    message = refusal(checkpoint)
    assert key in message
    assert str(checkpoint) in message


@pytest.mark.parametrize("low", [4.0, 5.0])
def test_frequency_factors_in_the_wrong_order_are_refused(checkpoint: Path, low: float) -> None:
    scaling = {"factor": 8.0, "low_freq_factor": low, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
    change_config(checkpoint, rope_scaling={"rope_type": "llama3", **scaling})
    assert "low_freq_factor that is not below its high_freq_factor" in refusal(checkpoint)


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.3, 0.99])
def test_a_truncated_file_is_refused(checkpoint: Path, kept: float) -> None:
    path = checkpoint / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    assert str(path) in refusal(checkpoint)
    with pytest.raises(ConfigurationError, match=path.name):
        read_tensors(checkpoint)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"hidden_size": 32}, "hidden size is 16, but this target's is 32"),
        ({"vocab_size": 20}, "vocabulary is 19, but this target's is 20"),
        ({"kv_width": 48}, r"key/value width \(Ekv2E.weight\) is 24, but this target's is 48"),
        ({"layers": 4}, "number of target layers is 3, but this target's is 4"),
    ],
)
def test_a_drafter_of_another_target_is_refused(change: dict, sentence: str) -> None:
    check_against_target(SHAPE, TARGET)
    with pytest.raises(ConfigurationError, match=sentence):
        check_against_target(SHAPE, replace(TARGET, **change))


def test_more_target_layers_than_there_are_are_refused() -> None:
    shape = replace(SHAPE, target_layer_inference=4, num_target_layers=None)
    with pytest.raises(ConfigurationError, match="target_layer_inference = 4, but the target has only 3 layers"):
        check_against_target(shape, TARGET)
    check_against_target(replace(shape, target_layer_inference=3), replace(TARGET, layers=3))
