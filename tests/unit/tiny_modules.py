"""Targets with a multi-token prediction module, as far as a training looks at their files: ends, module, configuration.
All is random and small."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM, Qwen3_5MoeTextConfig, Qwen3_5TextConfig, Qwen3NextConfig

from tests.engine.modules import OF_QWEN, add_module
from vllm_specext.methods.layers import Rotary
from vllm_specext.training.mtp import layouts
from vllm_specext.training.mtp.checkpoint import file_shapes
from vllm_specext.training.mtp.model import ModuleShape, MtpModule
from vllm_specext.training.pipeline.mtp import shape_of
from vllm_specext.training.pipeline.target import read_target

WEIGHTS = "model.safetensors"
VOCABULARY, WIDTH = 50, 32
KEYS: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 48,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 64,
    "tie_word_embeddings": False,
}
MIMO = KEYS | {
    "architectures": ["MiMoForCausalLM"],
    "model_type": "qwen2",
    "num_nextn_predict_layers": 1,
    "rope_theta": 640000.0,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
QWEN = KEYS | {
    "architectures": ["Qwen3_5ForCausalLM"],
    "model_type": "qwen3_5_text",
    "mtp_num_hidden_layers": 1,
    "rope_parameters": ROPE,
    "layer_types": ["linear_attention", "full_attention"] * 2,
}


EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 16,
}
NEXT = QWEN | EXPERTS | {"architectures": ["Qwen3NextForCausalLM"], "model_type": "qwen3_next"}
MOE = QWEN | EXPERTS | {"architectures": ["Qwen3_5MoeForCausalLM"], "model_type": "qwen3_5_moe_text"}
OF_TRANSFORMERS: dict[str, Any] = {
    "qwen3_5_text": Qwen3_5TextConfig,
    "qwen3_next": Qwen3NextConfig,
    "qwen3_5_moe_text": Qwen3_5MoeTextConfig,
}
ENDS = {
    "model.embed_tokens.weight": (VOCABULARY, WIDTH),
    "lm_head.weight": (VOCABULARY, WIDTH),
    "model.norm.weight": (WIDTH,),
}


def target_in(folder: Path, config: dict[str, Any]) -> Path:
    """``MIMO``, or one of Qwen's, with the module that the layout has. Qwen's are made out of transformers' layer."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    generator = torch.Generator().manual_seed(0)
    tensors = {name: torch.randn(size, generator=generator) for name, size in ENDS.items()}
    save_file(tensors, folder / WEIGHTS)
    if kind := OF_TRANSFORMERS.get(config["model_type"]):
        own = {"num_hidden_layers": 1, "layer_types": ["full_attention"], "rope_parameters": ROPE}
        experts = {key: config[key] for key in EXPERTS if key in config}
        add_module(folder, OF_QWEN, kind(**KEYS | own | experts))
        return folder
    for name, shape in file_shapes(shape_of(read_target(str(folder)))).items():
        weight = torch.randn(shape, generator=generator)
        tensors[name] = 1 + 0.1 * weight if "norm" in name else 0.2 * weight
    save_file(tensors, folder / WEIGHTS)
    return folder


def tiny_module(target: LlamaForCausalLM) -> MtpModule:
    """In MiMo's layout, for the target of ``tiny_llama.py``; the same one for the same target."""
    config = target.config
    torch.manual_seed(0)
    return MtpModule(
        ModuleShape(
            layout=layouts.MIMO,
            hidden_size=config.hidden_size,
            heads=config.num_attention_heads,
            kv_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            mlp_size=config.intermediate_size,
            rms_norm_eps=config.rms_norm_eps,
            rotary=Rotary(config.rope_parameters["rope_theta"]),
            experts=None,
            config={},
        )
    )


def change(folder: Path, tensors: dict[str, torch.Tensor | None]) -> None:
    """Set or remove tensors of the file in ``folder``."""
    found = load_file(folder / WEIGHTS) | tensors
    save_file({name: each for name, each in found.items() if each is not None}, folder / WEIGHTS)
