"""Deliberate faults in how tree attention is told about a target's layers."""

from typing import Any


def _tell(**wrong: Any) -> None:
    import vllm_specext.engine.verification.attention as attention

    stock = attention.tree_attention
    attention.tree_attention = lambda *args, **told: stock(*args, **(told | wrong))  # type: ignore[assignment]


def forget_windows() -> None:
    """Nodes of trees see their whole prefix in every layer."""
    _tell(sliding_window=0)


def forget_sinks() -> None:
    """Attention sinks take no share of the weights of trees."""
    _tell(sinks=None)


def forget_scales() -> None:
    """Keys and values in float8 are taken for what they stand for."""
    import torch

    _tell(k_scale=torch.ones(1), v_scale=torch.ones(1))
