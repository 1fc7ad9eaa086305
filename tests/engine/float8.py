"""A target whose checkpoint brings scales for keys and values in float8, made of the bundled one."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from vllm.platforms import current_platform

from tests.engine.workload import TARGET, copy_tokenizer

needs_float8_caches = pytest.mark.skipif(
    current_platform.is_cpu() and not torch.cpu._is_avx512_supported(),
    reason="vLLM has float8 caches on CPUs with AVX-512 alone",
)


def with_scales(folder: Path) -> Path:
    """As compressed-tensors writes them, one for the keys and one for the values of every layer; nothing else is
    quantised."""
    copy_tokenizer(folder)
    config, tensors = json.loads((TARGET / "config.json").read_text()), load_file(TARGET / "model.safetensors")
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False, "symmetric": True}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {},
        "ignore": [],
        "kv_cache_scheme": scheme,
    }
    for layer in range(config["num_hidden_layers"]):
        for name, scale in (("k", 0.05 + 0.01 * layer), ("v", 0.02 + 0.002 * layer)):
            tensors[f"model.layers.{layer}.self_attn.{name}_scale"] = torch.tensor([scale])
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
