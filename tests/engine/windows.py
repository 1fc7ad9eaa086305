"""Targets made of the bundled one, whose layers have sliding windows, and attention sinks if wanted."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from tests.engine.workload import TARGET, copy_tokenizer

WINDOW = 40


def gpt_oss(folder: Path) -> Path:
    """A small gpt-oss of random weights: every other layer has a window, and every layer has sinks and experts."""
    from transformers import GptOssConfig, GptOssForCausalLM

    text = json.loads((TARGET / "config.json").read_text())
    length = text["max_position_embeddings"]
    rope = {"rope_type": "yarn", "factor": 1.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
    config = GptOssConfig(
        **{key: text[key] for key in ("vocab_size", "eos_token_id", "pad_token_id", "max_position_embeddings")},
        num_hidden_layers=4,
        num_local_experts=4,
        num_experts_per_tok=2,
        hidden_size=128,
        intermediate_size=128,
        head_dim=64,
        num_attention_heads=8,
        num_key_value_heads=2,
        sliding_window=WINDOW,
        initial_context_length=length,
        rope_theta=10000.0,
        rope_scaling=rope | {"original_max_position_embeddings": length},
    )
    torch.manual_seed(0)
    model = GptOssForCausalLM(config)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.normal_(0, 1.0 if "sinks" in name else 0.08)
    copy_tokenizer(folder)
    model.save_pretrained(folder)
    return folder


def windowed(folder: Path, sinks: bool = False, every_layer: bool = False) -> Path:
    """As a Llama, or as a Granite with ``sinks`` of random scores, which are of the size of other scores."""
    copy_tokenizer(folder)
    config, tensors = json.loads((TARGET / "config.json").read_text()), load_file(TARGET / "model.safetensors")
    layers, heads = config["num_hidden_layers"], config["num_attention_heads"]
    config["sliding_window"] = WINDOW
    if not every_layer:
        config["layer_types"] = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    if sinks:
        config |= {
            "architectures": ["GraniteForCausalLM"],
            "model_type": "granite",
            "attention_multiplier": config["head_dim"] ** -0.5,
            "embedding_multiplier": 1.0,
            "residual_multiplier": 1.0,
            "logits_scaling": 1.0,
        }
        generator = torch.Generator().manual_seed(0)
        for layer in range(layers):
            tensors[f"model.layers.{layer}.self_attn.sinks"] = torch.randn(heads, generator=generator).half()
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
