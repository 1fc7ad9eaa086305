"""Which targets draft with their own module."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from transformers import Qwen2Config

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.mtp.modules import TARGETS
from vllm_specext.methods.mtp.prepare import prepare
from vllm_specext.methods.prepared import Prepared
from vllm_specext.methods.stock.checkpoint import INDEX
from vllm_specext.options.trees import MtpTreeOptions
from vllm_specext.refusals import Launch

LAYERS = 12


def launch(folder: Path, architecture: str, load_format: str = "auto", **config: Any) -> Launch:
    model = SimpleNamespace(
        architecture=architecture,
        hf_text_config=SimpleNamespace(num_hidden_layers=LAYERS, **config),
        model=str(folder),
        model_weights="",
        revision=None,
        quantization="fp8",
        use_mla=False,
    )
    arguments = SimpleNamespace(load_format=load_format)
    return Launch(arguments, model, SimpleNamespace(), kv_cache_dtype="auto", drafts_trees=True)


def save(folder: Path, name: str, in_parts: bool = False) -> Path:
    """A checkpoint with a tensor of this ``name``."""
    if in_parts:
        (folder / INDEX).write_text(json.dumps({"weight_map": {"lm_head.weight": "a", name: "b"}}))
    else:
        save_file({name: torch.zeros(1)}, folder / "model.safetensors")
    return folder


@pytest.mark.parametrize("architecture", TARGETS)
@pytest.mark.parametrize("in_parts", [False, True])
def test_a_target_with_one_module_drafts_with_it(tmp_path: Path, architecture: str, in_parts: bool) -> None:
    modules = TARGETS[architecture]
    save(tmp_path, f"{modules.prefix.format(layers=LAYERS)}0.weight", in_parts)
    fields = prepare(MtpTreeOptions(), launch(tmp_path, architecture, **{modules.key: 1})).fields
    assert (fields["model"], fields["quantization"]) == (str(tmp_path), "fp8")


@pytest.mark.parametrize("architecture", TARGETS)
@pytest.mark.parametrize("in_parts", [False, True])
def test_one_that_was_saved_without_is_refused(tmp_path: Path, architecture: str, in_parts: bool) -> None:
    save(tmp_path, f"model.layers.{LAYERS - 1}.mlp.weight", in_parts)
    config = {TARGETS[architecture].key: 1}
    with pytest.raises(ConfigurationError, match=r"has no multi-token prediction module.*begins with") as raised:
        prepare(MtpTreeOptions(), launch(tmp_path, architecture, **config))
    assert str(tmp_path) in str(raised.value)
    prepare(MtpTreeOptions(), launch(tmp_path, architecture, load_format="dummy", **config))


@pytest.mark.parametrize(
    ("architecture", "config", "said"),
    [
        ("MiMoForCausalLM", {}, "num_nextn_predict_layers is 0"),
        ("MiMoForCausalLM", {"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is 2"),
        ("Glm4MoeForCausalLM", {"num_nextn_predict_layers": 0}, "num_nextn_predict_layers is 0"),
        ("Qwen3NextForCausalLM", {"num_nextn_predict_layers": 3}, "num_nextn_predict_layers is 3"),
        ("Qwen3_5ForConditionalGeneration", {"mtp_num_hidden_layers": 0}, "mtp_num_hidden_layers is 0"),
        ("LlamaForCausalLM", {}, "Qwen3NextForCausalLM"),
    ],
)
def test_other_numbers_and_architectures_are_refused(
    tmp_path: Path, architecture: str, config: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said):
        prepare(MtpTreeOptions(), launch(tmp_path, architecture, **config))


MIMO = "MiMoForCausalLM"
OWN: dict[str, Any] = {
    "architectures": [MIMO],
    "model_type": "qwen2",
    "num_hidden_layers": LAYERS,
    "hidden_size": 32,
    "num_nextn_predict_layers": 1,
}


PROJECTION = "model.mtp_layers.0.input_proj.weight"


def beside(folder: Path, own: Path, name: str = PROJECTION, quantization: str | None = None, **config: Any) -> Prepared:
    """A module in the folder ``own`` with this ``config``, for a MiMo in ``folder``."""
    own.mkdir()
    (own / "config.json").write_text(json.dumps(OWN | config))
    target = launch(save(folder, "lm_head.weight"), MIMO)
    target.model.hf_config = target.model.hf_text_config = Qwen2Config(**OWN)
    target.model.quantization = quantization
    return prepare(MtpTreeOptions(model=str(save(own, name))), target)


def test_a_module_of_its_own_drafts_for_a_target_that_was_saved_without(tmp_path: Path) -> None:
    fields = beside(tmp_path, tmp_path / "module").fields
    assert (fields["model"], "quantization" in fields) == (str(tmp_path / "module"), False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"architectures": ["LlamaForCausalLM"]},
            r"architectures is .*; a module's is the target's, \['MiMoForCausalLM'",
        ),
        ({"hidden_size": 64}, "hidden_size is 64 but the target has 32"),
        ({"num_nextn_predict_layers": 2}, "num_nextn_predict_layers is 2 but the target has 1"),
        ({"quantization": "fp8"}, "a module of its own, but the target or the module is quantised"),
        ({"quantization_config": {"quant_method": "fp8"}}, "but the target or the module is quantised"),
        ({"hidden_size": "many"}, "config.json is not a configuration that vLLM reads"),
        ({"name": "model.layers.0.mlp.up_proj.weight"}, "no multi-token prediction module: no name .* begins with"),
    ],
)
def test_a_module_of_another_target_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=said):
        beside(tmp_path, tmp_path / "module", **changes)


def test_a_module_that_lacks_a_tensor_of_the_targets_own_is_refused(tmp_path: Path) -> None:
    save(tmp_path, PROJECTION.replace("input_proj", "final_layernorm"))
    fitting = launch(tmp_path, MIMO, num_nextn_predict_layers=1)
    fitting.model.hf_config = fitting.model.hf_text_config = Qwen2Config(**OWN)
    fitting.model.quantization = None
    (tmp_path / "module").mkdir()
    (tmp_path / "module" / "config.json").write_text(json.dumps(OWN))
    options = MtpTreeOptions(model=str(save(tmp_path / "module", PROJECTION)))
    with pytest.raises(ConfigurationError, match=r"it lacks tensor model.mtp_layers.0.final_layernorm.weight"):
        prepare(options, fitting)


@pytest.mark.parametrize("architecture", ["Qwen3NextForCausalLM", "Qwen3_5ForCausalLM"])
def test_configurations_that_do_not_say_it_mean_one(tmp_path: Path, architecture: str) -> None:
    save(tmp_path, "mtp.fc.weight")
    prepare(MtpTreeOptions(), launch(tmp_path, architecture))
