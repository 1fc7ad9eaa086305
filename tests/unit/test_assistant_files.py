"""Assistants that do not fit their target, or that vLLM could not load, are refused with a sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.engine.assistant import CHOSEN, make_assistant
from tests.engine.test_architectures import KEYS
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.mtp.prepare import WITH_ASSISTANT, prepare
from vllm_specext.options.trees import MtpTreeOptions
from vllm_specext.refusals import Launch

ORDERING = "masked_embedding.token_ordering"


@pytest.fixture
def assistant(tmp_path: Path) -> Path:
    return make_assistant(tmp_path, ordered=True)


def launch(architecture: str = WITH_ASSISTANT[0], width: int = KEYS["hidden_size"], **text: Any) -> Launch:
    kinds = ["sliding_attention", "full_attention"] * 2
    of_text = {"num_hidden_layers": 4, "num_kv_shared_layers": 2, "layer_types": kinds} | text
    model = SimpleNamespace(
        architecture=architecture,
        hf_text_config=SimpleNamespace(**of_text),
        get_hidden_size=lambda: width,
        get_vocab_size=lambda: KEYS["vocab_size"],
    )
    return Launch(SimpleNamespace(), model, SimpleNamespace(), kv_cache_dtype="auto", drafts_trees=True)


def asking_for(folder: Path) -> MtpTreeOptions:
    return MtpTreeOptions(model=str(folder))


def edit_config(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    config = json.loads((folder / "config.json").read_text())
    change(config)
    (folder / "config.json").write_text(json.dumps(config))


def edit_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("architecture", WITH_ASSISTANT)
def test_one_that_fits_is_taken_without_the_targets_quantisation(assistant: Path, architecture: str) -> None:
    fields = prepare(asking_for(assistant), launch(architecture)).fields
    assert fields["model"] == str(assistant)
    assert "quantization" not in fields
    assert fields["disable_eagle_block_drop"]


def test_one_has_no_backend_of_its_own(assistant: Path) -> None:
    options = MtpTreeOptions(model=str(assistant), attention_backend="TRITON_ATTN")
    with pytest.raises(ConfigurationError, match="reads the target's cache as the target does: leave the key out"):
        prepare(options, launch())


def test_a_target_with_an_assistant_needs_one() -> None:
    with pytest.raises(ConfigurationError, match="needs the speculative-config key 'model' with a target of"):
        prepare(MtpTreeOptions(), launch())


def test_one_is_no_module_of_another_target(assistant: Path) -> None:
    asked = launch("Glm4MoeForCausalLM", num_nextn_predict_layers=1)
    asked.model.hf_config, asked.model.use_mla = SimpleNamespace(architectures=["Glm4MoeForCausalLM"]), False
    asked.model.quantization, asked.model.model_weights, asked.model.model = None, "", "target"
    asked.arguments.load_format = "dummy"
    with pytest.raises(ConfigurationError, match=r"architectures is .*; a module's is the target's, \['Glm4Moe"):
        prepare(asking_for(assistant), asked)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"width": 256}, "backbone_hidden_size is 128 but the target has 256"),
        ({"num_kv_shared_layers": 3}, "layer_types has 'full_attention', but the target's layers with keys and values"),
    ],
)
def test_one_for_another_target_is_refused(assistant: Path, given: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        prepare(asking_for(assistant), launch(**given))


def of_text(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda config: config["text_config"].__setitem__(key, value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda config: config.update(model_type="gemma4_text"), "model_type is 'gemma4_text'; an assistant's is"),
        (lambda config: config.update(backbone_hidden_size="wide"), "is not a configuration that vLLM reads"),
        (of_text("vocab_size", 4096), "vocab_size is 4096 but the target has 2048"),
        (of_text("intermediate_size", 2**30), r"has shape \[128, 64\]; expected \[1073741824, 64\]"),
        (lambda config: config.update(num_centroids=60), "num_centroids is 60"),
        (lambda config: config.update(centroid_intermediate_top_k=CHOSEN * 100), "centroid_intermediate_top_k is 1600"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(
    assistant: Path, change: Callable[[dict[str, Any]], object], said: str
) -> None:
    edit_config(assistant, change)
    if "num_centroids" in said:
        edit_tensors(assistant, lambda all: all.update({"masked_embedding.centroids.weight": torch.zeros(60, 64)}))
    with pytest.raises(ConfigurationError, match=said):
        prepare(asking_for(assistant), launch())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda all: all.pop("post_projection.weight"), "lacks tensor post_projection.weight"),
        (lambda all: all["model.norm.weight"].fill_(float("nan")), "holds NaN or an infinity"),
        (lambda all: all[ORDERING].fill_(2048), f"{ORDERING} has to hold tokens below 2048"),
        (lambda all: all.update({ORDERING: torch.zeros(2048)}), f"{ORDERING} has to hold tokens below 2048"),
        (lambda all: all.update({"model.norm.weight": torch.ones(64).int()}), "does not hold floating-point numbers"),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    assistant: Path, change: Callable[[dict[str, torch.Tensor]], object], said: str
) -> None:
    edit_tensors(assistant, change)
    with pytest.raises(ConfigurationError, match=said):
        prepare(asking_for(assistant), launch())
