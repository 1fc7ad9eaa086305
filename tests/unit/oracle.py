"""What the official GRIFFIN classes computed (``tests/data/griffin_case1.pt``), and the shape of the drafter in it."""

from pathlib import Path
from typing import Any

import torch

from vllm_specext.methods.griffin.checkpoint import GriffinShape
from vllm_specext.methods.griffin.model import GriffinDrafter
from vllm_specext.training.packed_attention import Layout


def load() -> dict[str, Any]:
    vectors: dict[str, Any] = torch.load(Path(__file__).parents[1] / "data" / "griffin_case1.pt", weights_only=True)
    return vectors


def shape_of(config: dict[str, Any]) -> GriffinShape:
    return GriffinShape(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        heads=config["num_attention_heads"],
        kv_heads=config["num_key_value_heads"],
        head_dim=config["hidden_size"] // config["num_attention_heads"],
        mlp_size=config["intermediate_size"],
        tgf_size=config["intermediate_size"],
        qkv_bias=False,
        rms_norm_eps=config["rms_norm_eps"],
        rope_theta=config["rope_theta"],
        max_position_embeddings=config["max_position_embeddings"],
    )


def training_case() -> dict[str, Any]:
    """A training step: inputs, what the official code made of them in each pass, and its gradients."""
    case: dict[str, Any] = load()["train"][0]
    return case


def training_drafter(case: dict[str, Any]) -> GriffinDrafter:
    model = GriffinDrafter(shape_of(case["config"]))
    model.load_state_dict(case["state_dict"])
    model.embed_tokens.requires_grad_(False)
    return model


def single(token_ids: torch.Tensor) -> Layout:
    """Every row of ``token_ids`` ``[B, L]`` is one row of text."""
    return Layout.of([[token_ids.shape[1]]] * len(token_ids))
