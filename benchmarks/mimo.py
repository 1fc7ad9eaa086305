"""A small target with a multi-token prediction module, in the layout of MiMo's checkpoints."""

import json
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vllm_specext.measure.bundled import TARGET


def make_mimo(folder: Path, **keys: Any) -> Path:
    """The bundled target as a MiMo in ``folder``, with a module of random weights. ``keys``: of its configuration."""
    for file in TARGET.iterdir():
        if file.suffix in (".json", ".jinja"):
            shutil.copy(file, folder)
    tensors = load_file(TARGET / "model.safetensors")
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 0.06) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).half()

    d, q, kv, mlp = 256, 256, 128, 512
    for layer in range(12):
        for name, size in {"q": q, "k": kv, "v": kv}.items():
            tensors[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = torch.zeros(size).half()
    prefix = "model.mtp_layers.0."
    shapes = {
        "token_layernorm.weight": (d,),
        "hidden_layernorm.weight": (d,),
        "final_layernorm.weight": (d,),
        "input_layernorm.weight": (d,),
        "post_attention_layernorm.weight": (d,),
        "input_proj.weight": (d, 2 * d),
        "self_attn.q_proj.weight": (q, d),
        "self_attn.k_proj.weight": (kv, d),
        "self_attn.v_proj.weight": (kv, d),
        "self_attn.q_proj.bias": (q,),
        "self_attn.k_proj.bias": (kv,),
        "self_attn.v_proj.bias": (kv,),
        "self_attn.o_proj.weight": (d, q),
        "mlp.gate_proj.weight": (mlp, d),
        "mlp.up_proj.weight": (mlp, d),
        "mlp.down_proj.weight": (d, mlp),
    }
    for name, shape in shapes.items():
        tensors[prefix + name] = torch.ones(shape).half() if "norm" in name else random(*shape)
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((TARGET / "config.json").read_text())
    config |= {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "attention_bias": True,
        "num_nextn_predict_layers": 1,
        "tie_word_embeddings": False,
    }
    (folder / "config.json").write_text(json.dumps(config | keys))
    return folder
