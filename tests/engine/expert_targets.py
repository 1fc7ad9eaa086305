"""Small targets of random weights, with experts and a multi-token prediction module, as GLM 4.5, ERNIE 4.5, Hy 3
and K-EXAONE are built."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.engine.modules import OF_ERNIE, OF_QWEN, Layout, add_module, of_glm, of_hy
from tests.engine.workload import copy_tokenizer

LAYERS = 4
KEYS: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 192,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 1024,
    "eos_token_id": [0, 3],
    "bos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "rms_norm_eps": 1e-5,
    "num_nextn_predict_layers": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
SHARPNESS = 10
"""What makes random scores so far apart that sampled tokens are mostly likely ones."""
WINDOW = 40


def make_target(folder: Path, family: str) -> Layout:
    """Write one of ``FAMILIES`` to ``folder``, and say how its module is built."""
    target, layer, layout = FAMILIES[family]()
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(target)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.08)
        model.lm_head.weight.mul_(SHARPNESS)
    copy_tokenizer(folder)
    model.float().save_pretrained(folder)
    add_module(folder, layout, layer)
    return layout


def _glm() -> tuple[Any, Any, Layout]:
    own = {"n_routed_experts": 4, "num_experts_per_tok": 2, "use_qk_norm": True, "attention_bias": True}
    rope = KEYS["rope_parameters"] | {"partial_rotary_factor": 0.5}
    target, layer = (
        transformers.Glm4MoeConfig(
            **KEYS | own | {"num_hidden_layers": layers, "first_k_dense_replace": dense, "rope_parameters": rope}
        )
        for layers, dense in ((LAYERS, 1), (1, 0))
    )
    return target, layer, of_glm(LAYERS)


def _ernie() -> tuple[Any, Any, Layout]:
    own = {"moe_num_experts": 4, "moe_k": 2, "num_hidden_layers": LAYERS}
    target = transformers.Ernie4_5_MoeConfig(**KEYS | own)
    # vLLM's module turns queries and keys as Llama does, and the target as GPT-J.
    return target, transformers.LlamaConfig(**KEYS | {"num_hidden_layers": 1}), OF_ERNIE


def _exaone(windows: bool = False) -> tuple[Any, Any, Layout]:
    """Three of four layers have a window, and the module's if ``windows``. The module has no experts."""
    own = {"num_experts": 4, "num_experts_per_tok": 2, "sliding_window": WINDOW, "sliding_window_pattern": 4}
    of_module = {} if windows else {"mtp_layer_types": ["full_attention"]}
    target = transformers.ExaoneMoeConfig(**KEYS | own | of_module | {"num_hidden_layers": LAYERS})
    # Transformers turns queries and keys in layers with windows alone.
    whole = {"sliding_window": KEYS["max_position_embeddings"], "layer_types": ["sliding_attention"]}
    layer = transformers.ExaoneMoeConfig(**KEYS | own | whole | {"num_hidden_layers": 1})
    return target, layer, OF_QWEN


def _hy() -> tuple[Any, Any, Layout]:
    """vLLM reads some keys by other names than transformers."""
    own = {"num_experts": 4, "num_experts_per_tok": 2, "expert_hidden_dim": 64, "route_norm": True, "qk_norm": True}
    target, layer = (
        transformers.HYV3Config(**KEYS | own | {"num_hidden_layers": len(kinds), "mlp_layer_types": kinds} | dense)
        for kinds, dense in (
            (["dense"] + ["sparse"] * (LAYERS - 1), {"first_k_dense_replace": 1}),
            (["sparse"], {"first_k_dense_replace": 0}),
        )
    )
    return target, layer, of_hy(LAYERS)


WINDOWS = "exaone-windows"
FAMILIES: dict[str, Callable[[], tuple[Any, Any, Layout]]] = {
    "glm": _glm,
    "ernie": _ernie,
    "hy": _hy,
    "exaone": _exaone,
    WINDOWS: partial(_exaone, windows=True),
}
