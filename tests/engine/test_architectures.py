"""Targets of other architectures than the bundled one's, small and of random weights: draft trees give the tokens of
plain decoding. Each drafts for itself, so that many drafts are accepted."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from tests.engine.conftest import Result, of_method
from tests.engine.test_lossless import differing, is_noticed
from tests.engine.workload import copy_tokenizer

Engines = Callable[..., Result]

pytestmark = pytest.mark.extended

HEADS = {"head_dim": 64}
WINDOW = {"sliding_window": 40}
EXPERTS = {"num_experts_per_tok": 2}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "Cohere2": ("Cohere2Config", WINDOW),
    "Exaone4": ("Exaone4Config", WINDOW | {"sliding_window_pattern": 2}),
    "Gemma2": ("Gemma2Config", HEADS | WINDOW | {"query_pre_attn_scalar": 64}),  # scores are capped
    "Gemma3": ("Gemma3TextConfig", HEADS | WINDOW | {"query_pre_attn_scalar": 64}),
    "Gemma4": (
        "Gemma4TextConfig",
        HEADS
        | WINDOW
        | {
            "global_head_dim": 128,
            "num_kv_shared_layers": 2,  # as in its smaller models
            "hidden_size_per_layer_input": 0,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
        },
    ),
    "Glm4": ("Glm4Config", HEADS),
    "GraniteMoe": ("GraniteMoeConfig", EXPERTS | {"num_local_experts": 4}),
    "Mistral": ("MistralConfig", HEADS | WINDOW),
    "Mixtral": ("MixtralConfig", EXPERTS | {"num_local_experts": 4}),
    "Nemotron": ("NemotronConfig", {"head_dim": 32}),
    "Olmo3": ("Olmo3Config", WINDOW),
    "Phi3": ("Phi3Config", {}),
    "Qwen3": ("Qwen3Config", HEADS),
    "Qwen3Moe": ("Qwen3MoeConfig", HEADS | EXPERTS | {"num_experts": 4, "moe_intermediate_size": 64}),
    "SmolLM3": ("SmolLM3Config", {}),
    "Starcoder2": ("Starcoder2Config", {}),
}
"""The class of the configuration, and keys of its own."""
KEYS: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "eos_token_id": [0, 3],
    "bos_token_id": 0,
    "pad_token_id": 0,
}


def make(name: str, folder: Path) -> Path:
    config, own = ARCHITECTURES[name]
    torch.manual_seed(0)
    model = getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, config)(**KEYS | own))
    return save_random(model, folder)


def save_random(model: transformers.PreTrainedModel, folder: Path) -> Path:
    """Write ``model`` with random weights to ``folder``."""
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.08)
    copy_tokenizer(folder)
    model.float().save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_trees_give_the_tokens_of_plain_decoding(engines: Engines, name: str, tmp_path: Path) -> None:
    target = make(name, tmp_path)
    trees, plain = of_method("draft-model-tree", target, 24, 4) | {"model": str(target)}, {"model": str(target)}
    result = engines(trees, keep_async=True)
    assert differing(result, engines(plain)) == []
    assert result["counters"]["vllm:spec_decode_num_accepted_tokens"] > 150
    assert is_noticed(engines, engines(plain), trees, "flip_an_ancestor_bit")
