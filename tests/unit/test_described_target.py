"""The target as its ``config.json`` describes it: its sizes, what is refused, and the sizes of a drafter's layer."""

import json
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vllm_specext.errors import ConfigurationError
from vllm_specext.registry import CAPTURE
from vllm_specext.training.pipeline import target as targets
from vllm_specext.training.pipeline.layer_sizes import layer_sizes
from vllm_specext.training.pipeline.target import (
    TargetModel,
    read_target,
    refuse_target,
    sees_or_hears,
    tokenizer_hash,
)
from vllm_specext.training.pipeline.target_ends import plain_numbers

LLAMA_2_7B = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "vocab_size": 32000, "num_hidden_layers": 32,
    "num_attention_heads": 32, "intermediate_size": 11008, "max_position_embeddings": 4096,
}  # fmt: skip


def target(folder: Path, **changes: Any) -> TargetModel:
    (folder / "config.json").write_text(json.dumps(LLAMA_2_7B | changes))
    return read_target(str(folder))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"layer_types": ["linear_attention", "full_attention"]}, "hybrid or attention-free"),
        ({"kv_lora_rank": 512, "index_topk": 64}, "sparse latent attention"),
        ({"is_encoder_decoder": True}, "encoder-decoder target"),
    ],
)
def test_a_target_that_cannot_be_served_or_trained_for_is_refused_by_the_table(
    changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    refuse_target("griffin", target(tmp_path), 1, captures=True)
    with pytest.raises(ConfigurationError, match=f"--target is .*{expected}.*, because "):
        refuse_target("griffin", target(tmp_path, **changes), 1, captures=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"layer_types": ["linear_attention", "full_attention"], "architectures": ["Qwen3_5ForCausalLM"]},
        {"architectures": ["Qwen3NextForCausalLM"]},
        {"architectures": ["FalconH1ForCausalLM"]},
        {"kv_lora_rank": 512},
        {"sliding_window": 128},
        {"vision_config": {}, "rope_parameters": {"mrope_section": [1, 2, 3], "rope_theta": 1e4}},
    ],
    ids=["hybrid", "Qwen3-Next", "Falcon-H1", "latent", "window", "sees"],
)
@pytest.mark.parametrize("method", ["griffin", "eagle3-tree"])
def test_targets_that_are_served_are_trained_for(method: str, changes: dict[str, Any], tmp_path: Path) -> None:
    refuse_target(method, target(tmp_path, **changes), 1, captures=True)


def test_what_is_not_captured_is_no_obstacle_where_nothing_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sees = target(tmp_path, vision_config={})
    monkeypatch.setattr(targets, "CAPTURE", replace(CAPTURE, declares=replace(CAPTURE.declares, bears=frozenset())))
    refuse_target("moa", sees, 1, captures=False)
    with pytest.raises(ConfigurationError, match="hidden states are not captured of a multimodal target"):
        refuse_target("griffin", sees, 1, captures=True)


@pytest.mark.parametrize(
    ("kinds", "refused"),
    [(["attention"], False), (["mamba", "attention"], True), ([], True)],
    ids=["dense", "both", "none"],
)
def test_a_granite_is_a_hybrid_where_it_has_recurrent_layers(kinds: list[str], refused: bool, tmp_path: Path) -> None:
    granite = target(tmp_path, architectures=["GraniteMoeHybridForCausalLM"], layer_types=kinds)
    with pytest.raises(ConfigurationError, match="a hybrid target") if refused else nullcontext():
        refuse_target("moa", granite, 1, captures=False)


EXPERTS = {"num_experts_per_tok": 8, "moe_intermediate_size": 2048}


@pytest.mark.parametrize(
    ("changes", "width"),
    [
        ({}, 11008),
        # DeepSeek V3's dense layers are as wide as what a token passes in the others.
        (EXPERTS | {"n_shared_experts": 1, "intermediate_size": 18432}, 18432),
        (EXPERTS | {"n_shared_experts": 1, "intermediate_size": 64}, 18432),
        (EXPERTS | {"shared_expert_intermediate_size": 512, "intermediate_size": None}, 16896),  # as Qwen3.5
        ({"num_local_experts": 32, "num_experts_per_tok": 4, "intermediate_size": 2880}, 11520),  # as gpt-oss
        ({"top_k_experts": 8, "moe_intermediate_size": 704, "intermediate_size": 2112}, 5632),  # as Gemma 4
        ({"num_experts_per_tok": 6, "moe_intermediate_size": [1536, 512]}, 11008),  # as ERNIE 4.5 VL
    ],
)
def test_a_drafter_is_as_wide_as_what_a_token_passes(changes: dict[str, Any], width: int, tmp_path: Path) -> None:
    assert target(tmp_path, **changes).intermediate_size == width


@pytest.mark.parametrize("width", [None, "wide", -1])
def test_a_width_that_is_no_number_is_refused(width: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"intermediate_size is {width!r}; expected a positive integer"):
        target(tmp_path, intermediate_size=width)


SPARSE: dict[str, tuple[dict[str, Any], tuple[int, ...], float]] = {
    "Gemma 3 4B": (
        {
            "architectures": ["Gemma3ForConditionalGeneration"],
            "model_type": "gemma3",
            "text_config": {
                "model_type": "gemma3_text",
                "hidden_size": 2560,
                "intermediate_size": 10240,
                "num_hidden_layers": 34,
                "sliding_window": 1024,
                "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            },
            "vision_config": {"model_type": "siglip_vision_model"},
        },
        (2560, 262208, 34, 8, 4, 256, 131072),
        1e6,
    ),
    "Qwen2-Audio": (
        {
            "architectures": ["Qwen2AudioForConditionalGeneration"],
            "model_type": "qwen2_audio",
            "text_config": {
                "model_type": "qwen2",
                "intermediate_size": 11008,
                "max_position_embeddings": 8192,
                "vocab_size": 156032,
                "use_sliding_window": False,
                "sliding_window": 32768,
            },
            "audio_config": {"model_type": "qwen2_audio_encoder"},
        },
        (4096, 156032, 32, 32, 32, 128, 8192),
        1e4,
    ),
}
"""Configurations as they were released, which leave out what is the class's default."""


@pytest.mark.parametrize("name", SPARSE)
def test_what_a_configuration_leaves_out_is_as_transformers_has_it(name: str, tmp_path: Path) -> None:
    config, sizes, theta = SPARSE[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = read_target(str(tmp_path))
    read = (found.hidden_size, found.vocab_size, found.layers, found.heads, found.kv_heads, found.head_dim)
    assert (*read, found.max_length) == sizes
    assert plain_numbers(found).rope_theta == theta
    assert sees_or_hears(found.config)
    refuse_target("griffin", found, 1, captures=True)


def test_a_drafters_heads_are_the_targets_unless_those_keep_no_keys(tmp_path: Path) -> None:
    own = {"num_key_value_heads": 4, "head_dim": 96}
    assert layer_sizes(target(tmp_path, **own), None) == (32, 4, 96, 11008)
    latent = target(tmp_path, kv_lora_rank=512, num_key_value_heads=128, hidden_size=7168)
    assert layer_sizes(latent, 64) == (56, 8, 128, 64)
    assert layer_sizes(target(tmp_path, kv_lora_rank=512, hidden_size=1152), 64) == (9, 3, 128, 64)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"hidden_size": 0}, "hidden_size is 0; expected a positive integer"),
        ({"vocab_size": None}, "vocab_size is None; expected a positive integer"),
        ({"num_key_value_heads": "8"}, "kv_heads is '8'; expected a whole number"),
        ({"vocab_size": 2**30}, "vocab_size is 1073741824; expected a whole number from 1 to"),
        ({"speculators_config": {}}, "which is itself a drafter"),
    ],
)
def test_a_damaged_configuration_is_one_sentence(changes: dict[str, Any], expected: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        target(tmp_path, **changes)


def test_a_chat_template_that_changes_changes_the_hash_of_what_prompts_are_made_of(tmp_path: Path) -> None:
    first = tokenizer_hash(target(tmp_path))
    assert first == tokenizer_hash(target(tmp_path, rope_theta=5000))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert first != tokenizer_hash(target(tmp_path))
