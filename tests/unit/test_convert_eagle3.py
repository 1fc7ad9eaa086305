"""EAGLE-3 drafters between the plain layout and that of speculators 0.9: what vLLM's class reads stays the same."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.unit.conversions import AUX, FC_NORM, INPUT_NORM, PLAIN, write_target
from tests.unit.eagle_folders import (
    DRAFTED,
    INDEX,
    LLAMA,
    QWEN,
    VOCABULARY,
    WEIGHTS,
    Config,
    D,
    Edit,
    Tensors,
    as_bin,
    eagle3,
    nested,
    prepared,
    two_layers,
    without,
    write,
)
from vllm_specext.convert.conversion import convert
from vllm_specext.convert.files import write as write_converted
from vllm_specext.convert.kinds import To
from vllm_specext.methods.eagle import prepare as module
from vllm_specext.methods.stock.config import read_drafter
from vllm_specext.options.stock import Eagle3TreeOptions


def numbered(tensors: Tensors) -> Tensors:
    """Each with numbers of its own, so that none can be taken for another; the vocabulary's stay."""
    generator = torch.Generator().manual_seed(0)
    return {
        name: x if name in ("d2t", "t2d") else torch.randn(x.shape, generator=generator).to(x.dtype)
        for name, x in tensors.items()
    }


@pytest.fixture(autouse=True)
def any_target(monkeypatch: pytest.MonkeyPatch) -> None:
    """`prepare` asks vLLM's class of the target whether it gives states; here there is no target."""
    monkeypatch.setattr(module, "check_target", lambda method, launch: None)


@pytest.fixture
def target(tmp_path: Path) -> str:
    return write_target(tmp_path / "target")


def converted(source: Path, to: To, target: str | None) -> Path:
    folder = source.with_name(f"{source.name}-{to}")
    folder.mkdir()
    write_converted(folder, convert(str(source), to, target).result)
    return folder


def config_of(folder: Path) -> Config:
    found: Config = json.loads((folder / "config.json").read_text())
    return found


def qwen(config: Config, tensors: Tensors) -> tuple[Config, Tensors]:
    norms = {f"midlayer.self_attn.{x}_norm.weight": torch.ones(4) for x in "qk"}
    return config | QWEN, tensors | norms


PLAIN_LAYOUTS: dict[str, tuple[Config, Tensors, Config]] = {
    "SafeAILab's": (PLAIN, eagle3(), {}),
    "SpecForge's": (
        PLAIN | {"eagle_config": {AUX: [1, 5, 8], "use_aux_hidden_state": True}},
        eagle3(),
        {AUX: [2, 6, 9]},
    ),
    "vLLM's numbers nested": (PLAIN | {"eagle_config": {AUX: [2, 6, 10]}}, eagle3(), {AUX: [2, 6, 10]}),
    "vLLM's numbers at the top": (
        PLAIN | {AUX: [3, 4, 5], "eagle_config": {AUX: [1, 2, 3]}},
        eagle3(),
        {AUX: [3, 4, 5]},
    ),
    "EAGLE-3.1": (
        PLAIN | {"fc_norm": True, "norm_output": True},
        eagle3() | FC_NORM,
        {"fc_norm": True, "norm_output": True},
    ),
    "ModelOpt's norm": (
        PLAIN | {"eagle_config": {"norm_before_fc": True}},
        eagle3() | INPUT_NORM,
        {"norm_before_fc": True},
    ),
    "vLLM's norm before the residual": (
        PLAIN | {"norm_before_residual": True},
        eagle3(),
        {"norm_before_residual": True},
    ),
    "a wider drafter": (
        PLAIN | {"hidden_size": 24, "head_dim": 4, "target_hidden_size": D},
        eagle3(d=24) | {"embed_tokens.weight": torch.zeros(VOCABULARY, 24)},
        {"target_hidden_size": D},
    ),
    "the target's vocabulary": (
        LLAMA,
        without(eagle3(), "d2t", "t2d", "lm_head.weight"),
        {"draft_vocab_size": VOCABULARY},
    ),
    "several layers": (PLAIN | {"num_hidden_layers": 2}, two_layers(), {}),
    "a rotary base in rope_parameters": (
        PLAIN | {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        eagle3(),
        {},
    ),
}


NO_WAY_BACK = ("several layers", "vLLM's norm before the residual")
"""What vLLM reads in the plain layout, and no other reader."""


@pytest.mark.parametrize("name", PLAIN_LAYOUTS)
def test_the_plain_layout_becomes_speculators(name: str, tmp_path: Path, target: str) -> None:
    config, tensors, outer = PLAIN_LAYOUTS[name]
    source = write(tmp_path / "drafter", config, numbered(tensors))
    folder = converted(source, To.SPECULATORS, target)
    found = config_of(folder)
    norms = dict.fromkeys(("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output"), False)
    default = {"draft_vocab_size": DRAFTED, "target_hidden_size": None, AUX: None, **norms}
    assert {key: found[key] for key in default} == default | outer
    assert found["speculators_model_type"] == "eagle3"
    assert found["speculators_version"] == "0.9.0"
    assert found["speculators_config"] == {
        "algorithm": "eagle3",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "default_proposal_method": "greedy",
        "verifier": {"name_or_path": target, "architectures": ["LlamaForCausalLM"]},
    }
    assert "model_type" not in found
    before, after = load_file(source / WEIGHTS), load_file(folder / WEIGHTS)
    assert after.keys() == {key.replace("midlayer.", "layers.0.") for key in before}
    assert all(torch.equal(after[key.replace("midlayer.", "layers.0.")], x) for key, x in before.items())
    assert all(after[key.replace("midlayer.", "layers.0.")].dtype == x.dtype for key, x in before.items())


@pytest.mark.parametrize("name", PLAIN_LAYOUTS)
def test_vllms_readers_make_the_same_of_both(name: str, tmp_path: Path, target: str) -> None:
    """By `prepare`, which goes through vLLM's own reader for each layout and compares all tensors with its class."""
    config, tensors, _ = PLAIN_LAYOUTS[name]
    source = write(tmp_path / "drafter", config, tensors)
    assert prepared(converted(source, To.SPECULATORS, target)) == prepared(source)


SCALED = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SCALED |= {"rope_type": "llama3", "factor": 8.0}
ROTARY: dict[str, Config] = {
    "nothing said": {},
    "a base": {"rope_theta": 5e5},
    "Llama 3.1's": {"rope_theta": 5e5, "rope_scaling": SCALED},
    "the same, as newer versions write it": {"rope_parameters": SCALED | {"rope_theta": 5e5}},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
}


@pytest.mark.parametrize("name", ROTARY)
def test_vllms_class_finds_the_same_numbers_in_both(name: str, tmp_path: Path, target: str) -> None:
    without_defaults = {key: value for key, value in PLAIN.items() if key not in ("hidden_act", "num_key_value_heads")}
    config = without_defaults | ROTARY[name] | {"num_key_value_heads": 2}
    source = write(tmp_path / "drafter", config, eagle3())
    folders = [source, converted(source, To.SPECULATORS, target)]
    folders.append(converted(folders[1], To.EAGLE, None))
    plain, nested, back = (read_drafter(folder, Eagle3TreeOptions(model="any"), False).config for folder in folders)
    for key in ("rope_parameters", "rms_norm_eps", "hidden_act", "num_key_value_heads", "max_position_embeddings"):
        assert getattr(plain, key) == getattr(nested, key) == getattr(back, key)


def test_qwen3s_layer_becomes_speculators(tmp_path: Path, target: str) -> None:
    source = write(tmp_path / "drafter", *qwen(PLAIN, eagle3()))
    folder = converted(source, To.SPECULATORS, target)
    assert config_of(folder)["transformer_layer_config"]["model_type"] == "qwen3"
    assert prepared(folder) == prepared(source)


@pytest.mark.parametrize("edit", [as_bin, lambda folder: as_bin(folder, _use_new_zipfile_serialization=False)])
def test_a_pickled_checkpoint_becomes_speculators(edit: Edit, tmp_path: Path, target: str) -> None:
    source = write(tmp_path / "drafter", PLAIN, numbered(eagle3()))
    wanted = load_file(source / WEIGHTS)
    edit(source)
    found = load_file(converted(source, To.SPECULATORS, target) / WEIGHTS)
    assert all(torch.equal(found[name.replace("midlayer.", "layers.0.")], x) for name, x in wanted.items())


def test_parts_with_an_index_become_one_file(tmp_path: Path, target: str) -> None:
    source = write(tmp_path / "drafter", PLAIN, numbered(eagle3()))
    tensors = load_file(source / WEIGHTS)
    (source / WEIGHTS).unlink()
    parts = {name: f"model-{1 + (name == 'fc.weight')}.safetensors" for name in tensors}
    for part in set(parts.values()):
        save_file({name: x for name, x in tensors.items() if parts[name] == part}, source / part)
    (source / INDEX).write_text(json.dumps({"weight_map": parts}))
    assert load_file(converted(source, To.SPECULATORS, target) / WEIGHTS).keys() == {
        name.replace("midlayer.", "layers.0.") for name in tensors
    }


@pytest.mark.parametrize("name", [name for name in PLAIN_LAYOUTS if name not in NO_WAY_BACK])
def test_there_and_back(name: str, tmp_path: Path, target: str) -> None:
    config, tensors, outer = PLAIN_LAYOUTS[name]
    source = write(tmp_path / "drafter", config, numbered(tensors))
    folder = converted(converted(source, To.SPECULATORS, target), To.EAGLE, target)
    before, after = load_file(source / WEIGHTS), load_file(folder / WEIGHTS)
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    found = config_of(folder)
    assert found["architectures"] == ["LlamaForCausalLMEagle3"]
    assert {key: found[key] for key in outer} == outer
    kept = config.keys() - {"eagle_config", "architectures"}
    assert {key: found[key] for key in kept} == {key: config[key] for key in kept}
    assert not [key for key in found if "speculators" in key or key == "transformer_layer_config"]


SPECULATORS_LAYOUTS: dict[str, tuple[Config, Tensors]] = {
    "as written": (nested(norm_before_residual=False), eagle3("layers.0.")),
    "with the embedding": (
        nested(norm_before_residual=False),
        eagle3("layers.0.") | {"embed_tokens.weight": torch.zeros(VOCABULARY, D)},
    ),
    "EAGLE-3.1": (
        nested(norm_before_residual=False, fc_norm=True, norm_output=True),
        eagle3("layers.0.") | FC_NORM,
    ),
    "a norm before fc": (
        nested(norm_before_residual=False, norm_before_fc=True),
        eagle3("layers.0.") | INPUT_NORM,
    ),
    "other layers": (nested(norm_before_residual=False, **{AUX: [2, 5, 9]}), eagle3("layers.0.")),
}


@pytest.mark.parametrize("name", SPECULATORS_LAYOUTS)
def test_speculators_becomes_the_plain_layout(name: str, tmp_path: Path) -> None:
    config, tensors = SPECULATORS_LAYOUTS[name]
    source = write(tmp_path / "drafter", config, tensors)
    folder = converted(source, To.EAGLE, None)
    assert config_of(folder)["architectures"] == ["LlamaForCausalLMEagle3"]
    assert not [key for key in load_file(folder / WEIGHTS) if key.startswith("layers.0.")]
    assert prepared(folder) == prepared(source)


def test_what_nothing_reads_is_named(tmp_path: Path, target: str) -> None:
    source = write(tmp_path / "drafter", PLAIN | {"eagle_config": {"parallel_draft_step": 1}}, eagle3())
    assert convert(str(source), To.SPECULATORS, target).result.left_out == ("eagle_config.parallel_draft_step",)
    source = write(
        tmp_path / "other", nested(norm_before_residual=False, embed_requires_grad=True), eagle3("layers.0.")
    )
    assert convert(str(source), To.EAGLE, None).result.left_out == ("embed_requires_grad",)
