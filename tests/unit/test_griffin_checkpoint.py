"""GRIFFIN checkpoints: what is written can be read, and every kind of damage is one sentence that names its place."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.griffin.checkpoint import (
    GriffinShape,
    check_against_target,
    read_shape,
    read_tensors,
    write_checkpoint,
)
from vllm_specext.methods.griffin.model import GriffinDrafter

SHAPE = GriffinShape(
    vocab_size=19,
    hidden_size=16,
    heads=4,
    kv_heads=2,
    head_dim=6,
    mlp_size=20,
    tgf_size=24,
    qkv_bias=False,
    rms_norm_eps=1e-5,
    rope_theta=500000.0,
    max_position_embeddings=64,
)
Q, K, DOWN = (f"layers.0.{x}.weight" for x in ("self_attn.q_proj", "self_attn.k_proj", "mlp.down_proj"))


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    write_checkpoint(tmp_path, SHAPE, GriffinDrafter(SHAPE).state_dict(), torch.float32)
    return tmp_path


def change_tensors(directory: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(directory / "model.safetensors")
    change(tensors)
    save_file(tensors, directory / "model.safetensors")


def change_config(directory: Path, **changes: object) -> None:
    path = directory / "config.json"
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({key: value for key, value in config.items() if value != "absent"}))


def as_bin(directory: Path, **options: object) -> Path:
    """Turn the checkpoint into the released format."""
    torch.save(load_file(directory / "model.safetensors"), directory / "pytorch_model.bin", **options)
    (directory / "model.safetensors").unlink()
    return directory / "pytorch_model.bin"


def refusal(directory: Path) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_shape(directory)
    message = str(caught.value)
    assert message.endswith(".")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("qkv_bias", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_written_is_read_back(tmp_path: Path, qkv_bias: bool, dtype: torch.dtype) -> None:
    shape = GriffinShape(**{**vars(SHAPE), "qkv_bias": qkv_bias})
    model = GriffinDrafter(shape)
    write_checkpoint(tmp_path, model.shape, model.state_dict(), dtype)
    assert read_shape(tmp_path) == shape
    tensors = read_tensors(tmp_path)
    assert tensors.keys() == model.state_dict().keys()
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensors[name], tensor.to(dtype))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_the_released_format_reads_the_same(checkpoint: Path, zipped: bool) -> None:
    before = read_tensors(checkpoint)
    as_bin(checkpoint, _use_new_zipfile_serialization=zipped)
    assert read_shape(checkpoint) == SHAPE
    after = read_tensors(checkpoint)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_safetensors_is_preferred_when_both_are_there(checkpoint: Path) -> None:
    (checkpoint / "pytorch_model.bin").write_bytes(b"not a checkpoint")
    assert read_shape(checkpoint) == SHAPE


def test_rotary_tables_in_the_file_are_ignored(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda t: t.update({"layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)}))
    assert read_shape(checkpoint) == SHAPE
    assert set(read_tensors(checkpoint)) == set(SHAPE.tensor_shapes())


@pytest.mark.parametrize(
    ("changes", "theta"),
    [
        ({"rope_theta": 20000}, 20000.0),
        ({"rope_theta": "absent"}, 10000.0),
        ({"rope_theta": "absent", "rope_parameters": {"rope_type": "default", "rope_theta": 7e5}}, 7e5),
    ],
)
def test_the_rotary_base_is_found_where_old_and_new_configurations_put_it(
    checkpoint: Path, changes: dict, theta: float
) -> None:
    change_config(checkpoint, **changes)
    assert read_shape(checkpoint).rope_theta == theta


def test_widths_come_from_the_tensors_not_from_the_configuration(checkpoint: Path) -> None:
    change_config(checkpoint, hidden_size=4096, intermediate_size=11008, num_key_value_heads=4, vocab_size=32000)
    assert read_shape(checkpoint) == SHAPE


@pytest.mark.parametrize("name", SHAPE.tensor_shapes())
def test_each_missing_tensor_is_named(checkpoint: Path, name: str) -> None:
    change_tensors(checkpoint, lambda t: t.pop(name))
    assert f"lacks tensor {name}." in refusal(checkpoint)
    with pytest.raises(ConfigurationError, match=name):
        read_tensors(checkpoint)


@pytest.mark.parametrize("name", sorted(set(SHAPE.tensor_shapes()) - {"embed_tokens.weight", Q, K}))
def test_each_misshapen_tensor_is_named_with_both_shapes(checkpoint: Path, name: str) -> None:
    """Three tensors define widths, so that a change to them shows in another; they have tests of their own."""
    rows, *rest = SHAPE.tensor_shapes()[name]
    wrong = [rows, rest[0] + 1] if rest else [rows + 1]
    change_tensors(checkpoint, lambda t: t.update({name: torch.zeros(wrong)}))
    message = refusal(checkpoint)
    assert f"tensor {name} has shape {wrong}; expected {[rows, *rest]}" in message


def test_a_down_projection_with_one_head_only_is_refused(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda t: t.update({DOWN: t[DOWN][:16].clone()}))
    assert f"tensor {DOWN} has shape [16, 20]; expected [32, 20]" in refusal(checkpoint)


def test_another_rank_is_refused(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda t: t.update({"embed_tokens.weight": torch.zeros(19 * 16)}))
    assert "tensor embed_tokens.weight has shape [304]" in refusal(checkpoint)


def test_an_unexpected_tensor_is_named(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda t: t.update({"layers.0.input_layernorm.weight": torch.ones(16)}))
    assert "unexpected tensor layers.0.input_layernorm.weight" in refusal(checkpoint)


def test_two_of_three_biases_are_refused(checkpoint: Path) -> None:
    prefix = "layers.0.self_attn"
    biases = {f"{prefix}.q_proj.bias": torch.zeros(24), f"{prefix}.k_proj.bias": torch.zeros(12)}
    change_tensors(checkpoint, lambda t: t.update(biases))
    assert f"lacks tensor {prefix}.v_proj.bias" in refusal(checkpoint)


def test_another_kind_of_drafter_is_named_as_such(checkpoint: Path) -> None:
    save_file({"fc.weight": torch.zeros(16, 48), "norm.weight": torch.ones(16)}, checkpoint / "model.safetensors")
    assert (
        "is not a GRIFFIN checkpoint: it lacks tensors embed_tokens.weight, fc.fc.weight, fc.fc.bias and 12 more"
        in (refusal(checkpoint))
    )


def test_integers_are_refused(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda t: t.update({DOWN: t[DOWN].to(torch.int8)}))
    assert f"tensor {DOWN} does not hold floating-point numbers" in refusal(checkpoint)


def test_an_empty_tensor_is_refused(checkpoint: Path) -> None:
    change_tensors(checkpoint, lambda t: t.update({DOWN: torch.zeros(32, 0)}))
    assert f"tensor {DOWN} has shape [32, 0]" in refusal(checkpoint)


@pytest.mark.parametrize("heads", [5, 8, 48])
def test_heads_that_do_not_divide_the_query_rows_evenly_are_refused(checkpoint: Path, heads: int) -> None:
    """24 rows: 5 does not divide them, 8 makes heads of size 3, 48 makes none."""
    change_config(checkpoint, num_attention_heads=heads)
    message = refusal(checkpoint)
    assert "q_proj.weight has 24 rows" in message
    assert f"num_attention_heads = {heads}" in message


@pytest.mark.parametrize("rows", [4, 9, 18])
def test_key_rows_that_do_not_fit_the_heads_are_refused(checkpoint: Path, rows: int) -> None:
    """Heads of size 6: 4 is less than one, 9 no multiple, and three do not divide four query heads."""
    change_tensors(checkpoint, lambda t: t.update({K: torch.zeros(rows, 16)}))
    assert f"k_proj.weight has {rows} rows" in refusal(checkpoint)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_attention_heads", "absent"),
        ("num_attention_heads", 0),
        ("num_attention_heads", -4),
        ("num_attention_heads", True),
        ("num_attention_heads", "4"),
        ("num_attention_heads", 2.0),
        ("rms_norm_eps", "absent"),
        ("rms_norm_eps", 0),
        ("rms_norm_eps", float("nan")),
        ("rope_theta", -1.0),
        ("rope_theta", float("inf")),
        ("max_position_embeddings", None),
        ("num_hidden_layers", 2),
        ("hidden_act", "gelu"),
        ("rope_scaling", {"type": "linear", "factor": 2.0}),
        ("rope_parameters", {"rope_type": "llama3", "rope_theta": 5e5}),
        ("rope_parameters", [1]),
    ],
)
def test_a_bad_configuration_value_is_named(checkpoint: Path, key: str, value: object) -> None:
    change_config(checkpoint, **{key: value})
    message = refusal(checkpoint)
    assert str(checkpoint / "config.json") in message
    assert key in message


@pytest.mark.parametrize("content", ["", "{", "[1]", "null", '"text"', "\udcff", "[" * 100_000])
def test_a_configuration_that_is_no_object_is_refused(checkpoint: Path, content: str) -> None:
    (checkpoint / "config.json").write_bytes(content.encode(errors="surrogateescape"))
    assert str(checkpoint / "config.json") in refusal(checkpoint)


def test_missing_files_are_named(checkpoint: Path) -> None:
    assert "nowhere is not a directory" in refusal(checkpoint / "nowhere")
    (checkpoint / "model.safetensors").unlink()
    assert "has neither model.safetensors nor pytorch_model.bin" in refusal(checkpoint)
    (checkpoint / "config.json").unlink()
    assert "has no config.json" in refusal(checkpoint)


@pytest.mark.parametrize("name", ["model.safetensors", "pytorch_model.bin", "legacy"])
@pytest.mark.parametrize("kept", [0.0, 0.001, 0.3, 0.99])
def test_a_truncated_file_is_refused(checkpoint: Path, name: str, kept: float) -> None:
    path = checkpoint / "model.safetensors"
    if name != "model.safetensors":
        path = as_bin(checkpoint, _use_new_zipfile_serialization=name != "legacy")
    content = path.read_bytes()
    path.write_bytes(content[: int(kept * len(content))])
    assert str(path) in refusal(checkpoint)
    with pytest.raises(ConfigurationError, match=path.name):
        read_tensors(checkpoint)


class Code:
    """Creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("wrapped", [True, False], ids=["zip", "plain pickle"])
def test_code_in_a_pickle_is_not_run(checkpoint: Path, wrapped: bool) -> None:
    trap = checkpoint / "trap"
    path = as_bin(checkpoint)
    if wrapped:
        torch.save({"embed_tokens.weight": Code(trap)}, path)
    else:
        path.write_bytes(pickle.dumps({"embed_tokens.weight": Code(trap)}))
    assert str(path) in refusal(checkpoint)
    with pytest.raises(ConfigurationError, match="other than tensors"):
        read_tensors(checkpoint)
    assert not trap.exists()


@pytest.mark.parametrize("content", [[torch.ones(1)], {"model": {"fc.fc.weight": torch.ones(1)}}])
def test_a_pickle_of_something_else_is_refused(checkpoint: Path, content: object) -> None:
    path = as_bin(checkpoint)
    torch.save(content, path)
    assert "does not hold a mapping from names to tensors" in refusal(checkpoint)


def test_a_drafter_of_another_target_is_refused() -> None:
    check_against_target(SHAPE, 16, 19)
    with pytest.raises(ConfigurationError, match="hidden size 16 but the target's is 32"):
        check_against_target(SHAPE, 32, 19)
    with pytest.raises(ConfigurationError, match="19 tokens in its vocabulary but the target has 20"):
        check_against_target(SHAPE, 16, 20)
