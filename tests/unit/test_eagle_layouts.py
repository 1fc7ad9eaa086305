"""EAGLE checkpoints in the layouts in which they are released are accepted."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.eagle_folders import (
    LLAMA,
    MLP,
    OWN_VOCABULARY,
    QWEN,
    VOCABULARY,
    D,
    as_bin,
    eagle1,
    eagle3,
    nested,
    prepared,
    safeailab,
    two_layers,
    without,
    write,
)
from vllm_specext.engine.registrations import register_serving_models
from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.eagle import prepare as module


@pytest.fixture(autouse=True)
def any_target(monkeypatch: pytest.MonkeyPatch) -> None:
    register_serving_models()
    monkeypatch.setattr(module, "check_target", lambda method, launch: None)


HALF: dict[str, Any] = {"dtype": torch.float16}
EMBEDDING = {"embed_tokens.weight": torch.zeros(VOCABULARY, D, **HALF)}
NORMS = {f"fc_norm.{state}.weight": torch.zeros(D, **HALF) for state in range(3)}
INPUT_NORM = {"input_norm.weight": torch.zeros(3 * D, **HALF)}
QK_NORMS = {f"layers.0.self_attn.{x}_norm.weight": torch.zeros(D // 4, **HALF) for x in "qk"}
BIASES = {f"midlayer.self_attn.{x}_proj.bias": torch.zeros(D if x in "qo" else D // 2, **HALF) for x in "qkvo"}
DEEPSEEKS = [0, 1, 5, 8, 11]
MLP_BIASES = {
    f"midlayer.mlp.{x}_proj.bias": torch.zeros(width, **HALF)
    for x, width in {"gate": MLP, "up": MLP, "down": D}.items()
}


SOUND: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "SafeAILab": (LLAMA | OWN_VOCABULARY, eagle3()),
    "with an embedding": (LLAMA | OWN_VOCABULARY, eagle3() | EMBEDDING),
    "plain Llama with the target's vocabulary": (LLAMA, without(eagle3("layers.0."), "lm_head.weight", "d2t")),
    "SpecForge": (
        LLAMA | OWN_VOCABULARY | {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 5, 8]}},
        eagle3(),
    ),
    "four layers of the target": (
        LLAMA | OWN_VOCABULARY | {"eagle_aux_hidden_state_layer_ids": [0, 3, 7, 12]},
        eagle3(states=4),
    ),
    "speculators": (nested(), eagle3("layers.0.") | EMBEDDING),
    "speculators with Qwen3's layer": (
        nested({"model_type": "qwen3", "head_dim": D // 4}),
        eagle3("layers.0.") | QK_NORMS,
    ),
    "Qwen3": (LLAMA | QWEN, eagle3("layers.0.") | QK_NORMS),
    "DeepSeek": (
        LLAMA | QWEN | {"architectures": ["Qwen3Eagle3Model"], "draft_vocab_size": None, "target_layer_ids": DEEPSEEKS},
        without(eagle3("layers.0.", states=5), "lm_head.weight", "d2t", "t2d") | QK_NORMS | EMBEDDING,
    ),
    "EAGLE-3.1": (LLAMA | OWN_VOCABULARY | {"fc_norm": True, "norm_output": True}, eagle3() | NORMS),
    "a norm before fc": (LLAMA | OWN_VOCABULARY | {"norm_before_fc": True}, eagle3() | INPUT_NORM),
    "the same, nested": (LLAMA | OWN_VOCABULARY | {"eagle_config": {"norm_before_fc": True}}, eagle3() | INPUT_NORM),
    "biases": (LLAMA | OWN_VOCABULARY | {"attention_bias": True, "mlp_bias": True}, eagle3() | BIASES | MLP_BIASES),
    "two layers": (LLAMA | OWN_VOCABULARY | {"num_hidden_layers": 2}, two_layers()),
    "another hidden size": (
        LLAMA | OWN_VOCABULARY | {"hidden_size": 24, "head_dim": 4, "target_hidden_size": D},
        eagle3(d=24) | {"embed_tokens.weight": torch.zeros(VOCABULARY, 24)},
    ),
    "buffers of rotary embeddings": (
        LLAMA | OWN_VOCABULARY,
        eagle3() | {"midlayer.self_attn.rotary_emb.inv_freq": torch.zeros(2)},
    ),
}


@pytest.mark.parametrize("layout", SOUND)
def test_released_layouts_are_accepted(layout: str, tmp_path: Path) -> None:
    prepared(write(tmp_path, *SOUND[layout]), tree_top_k=4)


def test_deepseek_numbers_layers_by_their_output(tmp_path: Path) -> None:
    config, tensors = SOUND["DeepSeek"]
    made = prepared(write(tmp_path / "drafter", config, tensors))
    assert made["eagle_aux_hidden_state_layer_ids"] == [layer + 1 for layer in DEEPSEEKS]
    with pytest.raises(ConfigurationError, match=r"target_layer_ids is \[\]; expected a list of integers"):
        prepared(write(tmp_path / "none", config | {"target_layer_ids": []}, tensors))


@pytest.mark.parametrize("change", [{}, {"qkv_bias": True}], ids=["LLaMA", "with biases"])
def test_eagle_1_is_accepted(change: dict[str, Any], tmp_path: Path) -> None:
    tensors = eagle1()
    if change:
        tensors |= {f"layers.0.self_attn.{x}_proj.bias": torch.zeros(D if x == "q" else D // 2) for x in "qkv"}
    prepared(write(tmp_path, LLAMA | change, tensors), "eagle-tree")


@pytest.mark.parametrize("options", [{}, {"_use_new_zipfile_serialization": False}], ids=["zip", "legacy"])
def test_bin_files_are_read(options: dict[str, Any], tmp_path: Path) -> None:
    safeailab(tmp_path)
    as_bin(tmp_path, **options)
    prepared(tmp_path)
