"""Targets that are not in the repository, of one of several architectures, with the bundled target's tokenizer, made at
once.

They know for each token two that may follow. The likelier ones make one long circle of all ordinary tokens, so that
greedy text does not repeat itself. Attention and MLPs are random, and matter little.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
    GptOssConfig,
    GptOssForCausalLM,
    GraniteMoeHybridConfig,
    GraniteMoeHybridForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3NextConfig,
    Qwen3NextForCausalLM,
)

from vllm_specext.measure.bundled import TARGET

VOCABULARY, WIDTH = 2048, 256
SPECIAL = 8
"""The first ids, which never follow."""
LIKELY, LESS_LIKELY = 0.1, 0.096


KEYS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "eos_token_id": [0, 3],
    "pad_token_id": 0,
    "initializer_range": 0.05,
}
WINDOW = {"sliding_window": 40, "layer_types": ["sliding_attention", "full_attention"] * 2}
RECURRENT = {
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_key_head_dim": 32,
    "linear_value_head_dim": 32,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}
MAMBA_2 = {
    "layer_types": ["mamba", "attention"] * 2,
    "mamba_n_heads": 8,
    "mamba_d_head": 64,
    "mamba_d_state": 16,
    "num_local_experts": 0,
    "shared_intermediate_size": KEYS["intermediate_size"],
    "attention_multiplier": KEYS["head_dim"] ** -0.5,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
ONE_MLP_WITH_EXPERTS = EXPERTS | {"shared_expert_intermediate_size": 64, "mlp_only_layers": [1, 2, 3]}


def gemma3() -> Any:
    return Gemma3ForCausalLM(Gemma3TextConfig(**KEYS | WINDOW, query_pre_attn_scalar=64))


def gpt_oss() -> Any:
    own = {"num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 192}
    return GptOssForCausalLM(GptOssConfig(**KEYS | WINDOW | own))


def qwen3() -> Any:
    return Qwen3ForCausalLM(Qwen3Config(**KEYS))


def qwen3_next() -> Any:
    return Qwen3NextForCausalLM(Qwen3NextConfig(**KEYS | RECURRENT | ONE_MLP_WITH_EXPERTS))


def granite() -> Any:
    return GraniteMoeHybridForCausalLM(GraniteMoeHybridConfig(**KEYS | MAMBA_2))


def make_target(folder: Path, new: Callable[[], Any] = qwen3) -> Path:
    torch.manual_seed(0)
    model = new()
    embedding, head = model.model.embed_tokens.weight.data, model.lm_head.weight.data
    embedding.copy_(torch.nn.functional.rms_norm(torch.randn_like(embedding), (WIDTH,)))
    head.zero_()
    for factor in (LIKELY, LESS_LIKELY):
        circle = torch.randperm(VOCABULARY - SPECIAL) + SPECIAL
        # What follows a special token is what follows some ordinary one.
        after = torch.randint(SPECIAL, VOCABULARY, (VOCABULARY,))
        after[circle] = circle.roll(-1)
        head.index_add_(0, after, factor * embedding)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copyfile(TARGET / name, folder / name)
    return folder
