"""Folders that hold a model's shape and no weights: a Llama, its EAGLE drafter and its GRIFFIN drafter."""

import json
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from vllm_specext.methods.griffin.checkpoint import GriffinShape


@dataclass(frozen=True)
class Size:
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int


LLAMA_3_8B = Size(4096, 14336, 32, 32, 8, 128, 128256)
CONTEXT = 8192


def write(folder: Path, size: Size, dtype: str) -> dict[str, Path]:
    """``target``, ``eagle`` and ``griffin`` in ``folder``."""
    paths = {name: folder / name for name in ("target", "eagle", "griffin")}
    for path in paths.values():
        path.mkdir(parents=True, exist_ok=True)
    config = _llama(size, dtype)
    _write_config(paths["target"], config)
    _write_config(paths["eagle"], config | {"num_hidden_layers": 1})
    _write_config(paths["griffin"], config | {"num_hidden_layers": 1, "qkv_bias": False})
    shape = GriffinShape(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_size,
        mlp_size=size.inner,
        tgf_size=size.inner,
        qkv_bias=False,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        max_position_embeddings=CONTEXT,
    )
    write_hollow(paths["griffin"] / "model.safetensors", shape.tensor_shapes())
    return paths


def write_hollow(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of float16 zeros that takes no room on disk: only its header is written."""
    header: dict[str, Any] = {}
    end = 0
    for name, sizes in shapes.items():
        begin, end = end, end + 2 * prod(sizes)
        header[name] = {"dtype": "F16", "shape": list(sizes), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + end)


def _llama(size: Size, dtype: str) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": dtype,
        "hidden_size": size.hidden,
        "intermediate_size": size.inner,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": size.kv_heads,
        "head_dim": size.head_size,
        "vocab_size": size.vocabulary,
        "max_position_embeddings": CONTEXT,
        "rope_theta": 500000.0,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }


def _write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
