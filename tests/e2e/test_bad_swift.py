"""What SWIFT cannot work with is said at start, in one sentence, on vLLM's own configuration of the launch."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.launches import assert_one_sentence, configure, copy_of_target, refusal

SWIFT = {"method": "swift"}
FOUND = {
    "model": "another",
    "architecture": "LlamaForCausalLM",
    "layers": 12,
    "hidden_size": 256,
    "vocab_size": 2048,
    "skip_ratio": 0.45,
    "skipped_attention": [1, 3],
    "skipped_mlp": [2],
    "matchness": 0.5,
    "steps": 100,
}
"""A set that was found with a target like the bundled one."""

KEYS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a ratio of 0": ({"swift_skip_ratio": 0.0}, ["'swift_skip_ratio' is 0.0", "greater than 0"]),
    "a ratio of 1": ({"swift_skip_ratio": 1.0}, ["'swift_skip_ratio' is 1.0", "less than 1"]),
    "a ratio above 1": ({"swift_skip_ratio": 1.5}, ["'swift_skip_ratio' is 1.5", "less than 1"]),
    "a ratio in words": ({"swift_skip_ratio": "half"}, ["'swift_skip_ratio' is 'half'"]),
    "a ratio that skips nothing": ({"swift_skip_ratio": 0.01}, ["'swift_skip_ratio' is 0.01", "20 sub-layers", "0.05"]),
    "no window": ({"swift_context_window": 0}, ["'swift_context_window' is 0", "greater than or equal to 1"]),
    "a score above 1": ({"swift_max_score": 2.0}, ["'swift_max_score' is 2.0", "less than or equal to 1"]),
    "a drafter": ({"model": "a/drafter"}, ["'model' is unknown for method 'swift'", "swift_layers"]),
    "a set that is not there": ({"swift_layers": "nowhere.json"}, ["'swift_layers' is 'nowhere.json'", "no file"]),
    "a place that is not there": ({"swift_save": "nowhere/set.json"}, ["'swift_save' is 'nowhere/set.json'", "folder"]),
}
SETS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another depth": ({"layers": 32}, ["set.json is a set for another", "layers is 32", "12"]),
    "another width": ({"hidden_size": 512}, ["hidden_size is 512", "256"]),
    "another architecture": ({"architecture": "Qwen2ForCausalLM"}, ["Qwen2ForCausalLM", "LlamaForCausalLM"]),
    "the last layer": ({"skipped_mlp": [11]}, ["set.json", "skipped_mlp is [11]", "1 to 10"]),
    "no layers": ({"skipped_attention": None}, ["set.json", "skipped_attention is None"]),
}
TARGETS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "two layers": ({"num_hidden_layers": 2}, ["target has 2 layers", "at least 3"]),
    "another architecture": (
        {"model_type": "gemma", "architectures": ["GemmaForCausalLM"]},
        ["GemmaForCausalLM", "LlamaForCausalLM, MistralForCausalLM"],
    ),
}
LAUNCHES: dict[str, tuple[dict[str, Any], list[str]]] = {
    "adapters": ({"enable_lora": True, "lora_target_modules": ["q_proj"]}, ["'swift'", "--enable-lora"]),
    "a quantised cache": ({"kv_cache_dtype": "fp8"}, ["'swift'", "--kv-cache-dtype"]),
    "pipeline parallel": ({"pipeline_parallel_size": 2}, ["'swift'", "--pipeline-parallel-size"]),
}


def test_a_sound_launch_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text(json.dumps(FOUND))
    given = SWIFT | {"swift_layers": str(tmp_path / "set.json")}
    assert configure(given, {"model": copy_of_target(tmp_path, {})}).speculative_config.method == "swift"
    assert configure(SWIFT | {"swift_save": str(tmp_path / "new.json")}).speculative_config.method == "swift"


@pytest.mark.parametrize("case", KEYS)
def test_a_bad_key_or_value_is_refused(case: str) -> None:
    keys, fragments = KEYS[case]
    assert_one_sentence(refusal(SWIFT | keys), fragments)


@pytest.mark.parametrize("case", SETS)
def test_a_set_that_does_not_fit_is_refused(case: str, tmp_path: Path) -> None:
    changes, fragments = SETS[case]
    (tmp_path / "set.json").write_text(json.dumps(FOUND | changes))
    assert_one_sentence(refusal(SWIFT | {"swift_layers": str(tmp_path / "set.json")}), fragments)


@pytest.mark.parametrize("case", TARGETS)
def test_a_target_whose_layers_cannot_be_skipped_is_refused(case: str, tmp_path: Path) -> None:
    changes, fragments = TARGETS[case]
    assert_one_sentence(refusal(SWIFT, {"model": copy_of_target(tmp_path, changes)}), fragments)


@pytest.mark.parametrize("case", LAUNCHES)
def test_an_unsupported_combination_is_refused(case: str) -> None:
    launch, fragments = LAUNCHES[case]
    assert_one_sentence(refusal(SWIFT, launch), fragments)
