"""Folders that hold a model's shape and no weights: a Llama and its EAGLE, EAGLE-3, DSpark and GRIFFIN drafters."""

import json
import struct
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from vllm_specext.methods.eagle.checkpoint import DrafterShape
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

    @property
    def cached_bytes(self) -> int:
        """Of a token in 16 bits: the target's keys and values, and those of the drafter that has most."""
        drafter = max(self.heads, min(BLOCK_LAYERS, self.layers) * self.kv_heads)
        return 4 * self.head_size * (self.layers * self.kv_heads + drafter)


LLAMA_3_8B = Size(4096, 14336, 32, 32, 8, 128, 128256)
CONTEXT = 40960
FREQUENT_TOKENS = 32000
"""Those that EAGLE-3's drafters for Llama-3 score."""
P_EAGLE_LAYERS = 4
"""Of those that were released for gpt-oss."""
BLOCK, BLOCK_LAYERS, MARKOV_RANK = 7, 5, 256
"""Of DSpark's drafters for Qwen3-8B."""


def write(folder: Path, size: Size, dtype: str) -> dict[str, Path]:
    """``target`` and, by method, its drafters in ``folder``."""
    paths = {name: folder / name for name in ("target", "eagle", "eagle3", "peagle", "dspark", "griffin")}
    for path in paths.values():
        path.mkdir(parents=True, exist_ok=True)
    config = _llama(size, dtype)
    _write_config(paths["target"], config)
    _write_config(paths["eagle"], config | {"num_hidden_layers": 1})
    frequent = {"draft_vocab_size": min(FREQUENT_TOKENS, size.vocabulary)}
    eagle3 = config | frequent | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1}
    _write_config(paths["eagle3"], eagle3)
    _write_config(paths["peagle"], eagle3 | {"num_hidden_layers": P_EAGLE_LAYERS, "ptd_token_id": 0})
    _write_config(paths["dspark"], config | _dspark(size))
    # The heads of the published GRIFFIN drafter have keys of their own.
    own = {"num_hidden_layers": 1, "qkv_bias": False, "num_key_value_heads": size.heads}
    _write_config(paths["griffin"], config | own)
    shape = GriffinShape(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        heads=size.heads,
        kv_heads=size.heads,
        head_dim=size.head_size,
        mlp_size=size.inner,
        tgf_size=size.inner,
        qkv_bias=False,
        rms_norm_eps=1e-5,
        rope_theta=500000.0,
        max_position_embeddings=CONTEXT,
    )
    write_hollow(paths["griffin"] / "model.safetensors", shape.tensor_shapes())
    shapes = _eagle3(size, frequent["draft_vocab_size"])
    write_hollow(paths["eagle3"] / "model.safetensors", shapes.required())
    at_once = replace(shapes, layers=P_EAGLE_LAYERS, at_once=True)
    write_hollow(paths["peagle"] / "model.safetensors", at_once.required())
    return paths


def write_hollow(path: Path, shapes: dict[str, tuple[int, ...]]) -> None:
    """A safetensors file of zeros that takes no room on disk: only its header is written. The numbers are float16, and
    int64 those that are added to the ids of frequent tokens, which thereby are the first tokens."""
    header: dict[str, Any] = {}
    end = 0
    for name, sizes in shapes.items():
        dtype, width = ("I64", 8) if name == "d2t" else ("F16", 2)
        begin, end = end, end + width * prod(sizes)
        header[name] = {"dtype": dtype, "shape": list(sizes), "data_offsets": [begin, end]}
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


def _eagle3(size: Size, frequent: int) -> DrafterShape:
    return DrafterShape(
        is_eagle3=True,
        vocab_size=size.vocabulary,
        draft_vocab_size=frequent,
        hidden_size=size.hidden,
        target_hidden_size=size.hidden,
        states=3,
        layers=1,
        heads=size.heads,
        kv_heads=size.kv_heads,
        head_dim=size.head_size,
        mlp_size=size.inner,
    )


def _dspark(size: Size) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "num_hidden_layers": min(BLOCK_LAYERS, size.layers),
        "num_target_layers": size.layers,
        "block_size": BLOCK,
        "mask_token_id": 1,
        "target_layer_ids": [1, size.layers // 2, size.layers - 2],
        "markov_rank": MARKOV_RANK,
        "markov_head_type": "vanilla",
        "sample_from_anchor": True,
    }


def _write_config(folder: Path, config: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
