"""EAGLE-3 checkpoints that are damaged, or say what the other layout cannot, are refused by the place of the fault."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.conversions import AUX, PLAIN, refusal, write_target
from tests.unit.eagle_folders import (
    DRAFTED,
    LLAMA,
    VOCABULARY,
    Config,
    D,
    Edit,
    Tensors,
    add,
    drop,
    eagle3,
    edit_config,
    nested,
    two_layers,
    without,
    write,
)
from vllm_specext.convert.kinds import To


@pytest.fixture
def target(tmp_path: Path) -> str:
    return write_target(tmp_path / "target")


UNSAYABLE: dict[str, tuple[Config, Tensors, list[str]]] = {
    "a norm before the residual": (
        nested(norm_before_residual=True),
        eagle3("layers.0."),
        ["norm_before_residual is True", "only False"],
    ),
    "a norm that is not said": (
        {key: value for key, value in nested().items() if key != "norm_before_residual"},
        eagle3("layers.0."),
        ["norm_before_residual is None", "true or false"],
    ),
    "Qwen3's layer": (
        nested({"model_type": "qwen3", "head_dim": 4}, norm_before_residual=False),
        eagle3("layers.0.") | {f"layers.0.self_attn.{x}_norm.weight": torch.ones(4) for x in "qk"},
        ["model_type is 'qwen3'", "only 'llama'"],
    ),
    "several layers": (
        nested({"num_hidden_layers": 2}, norm_before_residual=False),
        two_layers(),
        ["num_hidden_layers is 2", "has 1"],
    ),
    "another layer": (
        nested({"model_type": "gpt"}),
        eagle3("layers.0."),
        ["model_type is 'gpt'", "'llama' or 'qwen3'"],
    ),
    "no layer": (
        nested() | {"transformer_layer_config": None},
        eagle3("layers.0."),
        ["transformer_layer_config is None"],
    ),
    "P-EAGLE": (nested(speculators_model_type="peagle"), eagle3("layers.0."), ["'peagle'", "only 'eagle3'"]),
}


@pytest.mark.parametrize("name", UNSAYABLE)
def test_what_the_plain_layout_cannot_say_is_refused_by_name(name: str, tmp_path: Path) -> None:
    config, tensors, words = UNSAYABLE[name]
    message = refusal(write(tmp_path / "drafter", config, tensors), To.EAGLE, None)
    assert all(word in message for word in [str(tmp_path / "drafter" / "config.json"), *words])


@pytest.mark.parametrize("layer", ["midlayer.", "layers.0."])
@pytest.mark.parametrize("name", sorted(without(eagle3("layers.0."), "t2d")))
def test_each_missing_tensor_is_named_as_in_the_file(name: str, layer: str, tmp_path: Path, target: str) -> None:
    name = name.replace("layers.0.", layer)
    is_plain = layer == "midlayer."
    config = PLAIN if is_plain else nested(norm_before_residual=False)
    source = write(tmp_path / "drafter", config, without(eagle3(layer), name))
    message = refusal(source, To.SPECULATORS if is_plain else To.EAGLE, target)
    assert f"lacks tensor {name}." in message


DAMAGE: dict[str, tuple[Edit, list[str]]] = {
    "a wrong shape": (add(fc__weight=torch.zeros(D, 2 * D)), ["fc.weight has shape [16, 32]", "[16, 48]"]),
    "an extra tensor": (add(extra__weight=torch.zeros(3)), ["unexpected tensor extra.weight"]),
    "a bias": (add(fc__bias=torch.zeros(D)), ["fc.bias"]),
    "a norm without its key": (add(input_norm__weight=torch.ones(3 * D)), ["input_norm.weight", "norm_before_fc"]),
    "P-EAGLE's tensor": (add(mask_hidden=torch.zeros(1, 48)), ["mask_hidden", "P-EAGLE"]),
    "another type": (add(d2t=torch.zeros(DRAFTED)), ["d2t has the type", "int64"]),
    "a token outside": (add(d2t=torch.full((DRAFTED,), VOCABULARY)), ["d2t maps draft token 0 to token 40"]),
    "NaN": (add(norm__weight=torch.full((D,), float("nan"))), ["norm.weight holds NaN"]),
    "no norm of the feature": (drop("midlayer.hidden_norm.weight"), ["lacks tensor midlayer.hidden_norm.weight"]),
    "a vocabulary as text": (edit_config(vocab_size="40"), ["vocab_size is '40'"]),
    "more draft tokens than tokens": (edit_config(draft_vocab_size=41), ["draft_vocab_size is 41", "1..40"]),
    "no heads": (edit_config(num_attention_heads=0), ["num_attention_heads is 0"]),
    "no eps": (edit_config(rms_norm_eps=...), ["rms_norm_eps is None"]),
    "an activation": (edit_config(hidden_act="gelu"), ["hidden_act is 'gelu'"]),
    "a flag as text": (edit_config(norm_output="yes"), ["norm_output is 'yes'"]),
    "layers in disorder": (edit_config(**{AUX: [5, 2, 9]}), [AUX, "[5, 2, 9]", "ascending"]),
    "layers that are none": (edit_config(eagle_config={AUX: "all"}), [AUX, "'all'"]),
    "a nested list": (edit_config(eagle_config=[1]), ["eagle_config is [1]"]),
    "no states": (edit_config(eagle_config={"use_aux_hidden_state": False}), ["use_aux_hidden_state is False"]),
    "a nested norm": (edit_config(eagle_config={"fc_norm": True}), ["eagle_config.fc_norm is True"]),
    "another architecture": (
        edit_config(architectures=["GPT"]),
        ["architectures is ['GPT']", "LlamaForCausalLMEagle3"],
    ),
    "quantised": (edit_config(quantization_config={"bits": 4}), ["quantization_config"]),
    "layers without end": (edit_config(num_hidden_layers=10**9), ["num_hidden_layers is 1000000000", "64"]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_one_sentence_that_names_its_place(name: str, tmp_path: Path, target: str) -> None:
    edit, words = DAMAGE[name]
    source = write(tmp_path / "drafter", PLAIN, eagle3())
    edit(source)
    message = refusal(source, To.SPECULATORS, target)
    assert str(source) in message
    assert all(word in message for word in words), message


@pytest.mark.parametrize("key", ["vocab_size", "hidden_size"])
def test_another_target_is_refused(key: str, tmp_path: Path, target: str) -> None:
    edit_config(**{key: 8})(Path(target))
    for config, layer, to in (
        (PLAIN, "midlayer.", To.SPECULATORS),
        (nested(norm_before_residual=False), "layers.0.", To.EAGLE),
    ):
        source = write(tmp_path / to, config, eagle3(layer))
        assert f"whose {key} is 8" in refusal(source, to, target)


TARGETS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a drafter": (edit_config(speculators_config={}), "itself a drafter"),
    "no architecture": (edit_config(architectures=...), "architectures is None"),
    "no JSON": (lambda folder: (folder / "config.json").write_text("{"), "not valid JSON"),
    "no file": (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_that_is_none_is_refused(name: str, tmp_path: Path, target: str) -> None:
    edit, word = TARGETS[name]
    edit(Path(target))
    assert word in refusal(write(tmp_path / "drafter", PLAIN, eagle3()), To.SPECULATORS, target)


def test_sizes_of_a_target_with_several_parts_are_found(tmp_path: Path, target: str) -> None:
    path = Path(target) / "config.json"
    path.write_text(json.dumps({"architectures": ["X"], "text_config": LLAMA | {"hidden_size": 8}}))
    assert "whose hidden_size is 8" in refusal(write(tmp_path / "drafter", PLAIN, eagle3()), To.SPECULATORS, target)
