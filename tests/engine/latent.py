"""Small targets with multi-head latent attention (MLA), experts and a multi-token prediction module, as DeepSeek V3 and
GLM 4.7 Flash are built, of random weights."""

from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors.torch import load_file, save_file

from tests.engine.modules import WEIGHTS, Layout, add_module, of_deepseek, of_glm
from tests.engine.workload import copy_tokenizer

LAYERS = 3
KEYS: dict[str, Any] = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 192,
    "moe_intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    # As released ones have them: kernels know few others.
    "kv_lora_rank": 512,
    "qk_rope_head_dim": 64,
    "qk_nope_head_dim": 128,
    "v_head_dim": 128,
    "q_lora_rank": 96,
    "n_routed_experts": 8,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "topk_method": "noaux_tc",  # transformers knows no other way, and vLLM wants to be told
    "scoring_func": "sigmoid",
    "num_nextn_predict_layers": 1,
    "max_position_embeddings": 1024,
    "eos_token_id": [0, 3],
    "bos_token_id": 0,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
LLM: dict[str, Any] = {
    "block_size": 16,
    "attention_config": {"backend": "CPU_MLA"},  # a CPU with AMX has another
    # vLLM's rotary kernel for a CPU takes other strides for granted than these layers' queries and keys have.
    "compilation_config": {"custom_ops": ["-rotary_embedding"]},
}
LOUDNESS = 60
"""Of embeddings beside what layers add to them."""
SHARPNESS = 10
"""What makes random scores so far apart that sampled tokens are mostly likely ones."""


def _deepseek(layers: int, dense: int, **keys: Any) -> Any:
    """Of a model of so many ``layers``, the first of which are ``dense``."""
    return transformers.DeepseekV3Config(**KEYS | keys, num_hidden_layers=layers, first_k_dense_replace=dense)


def _glm(layers: int, dense: int, **keys: Any) -> Any:
    """vLLM reads some keys by other names than transformers."""
    kinds = ["dense"] * dense + ["sparse"] * (layers - dense)
    own = {"num_hidden_layers": layers, "mlp_layer_types": kinds, "first_k_dense_replace": dense}
    return transformers.Glm4MoeLiteConfig(**KEYS | own | keys)


FAMILIES = {"deepseek": (_deepseek, of_deepseek(LAYERS)), "glm": (_glm, of_glm(LAYERS))}


def make_target(folder: Path, family: str, **keys: Any) -> Layout:
    """Write one of ``FAMILIES`` to ``folder``, with these ``keys``, and say how its module is built.

    What layers add to the embeddings is little enough for the module, which goes on from the last token's embedding, to
    be right about many tokens, and would change as many if it were wrong."""
    config, layout = FAMILIES[family]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config(LAYERS, 1, **keys))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 0.08)
        model.model.embed_tokens.weight.mul_(LOUDNESS)
        model.lm_head.weight.mul_(SHARPNESS)
    copy_tokenizer(folder)
    model.float().save_pretrained(folder)
    add_module(folder, layout, config(1, 0, **keys))
    tensors = load_file(folder / WEIGHTS)
    d = model.config.hidden_size
    tensors[f"{layout.projection}.weight"] += LOUDNESS * torch.cat((torch.eye(d), torch.zeros(d, d)), dim=1)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return layout
