"""Deliberate faults in what a target's attention is told about trees and tree attention about layers."""

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


def count_up_on_axes() -> None:
    """Nodes of trees have the positions of a chain where positions have several axes."""
    from tests.engine.sounds import place_on_three_axes
    from vllm_specext.engine.verification.tree_steps import TreeSteps

    place_on_three_axes()
    TreeSteps.place_on_axes = lambda self, batch, positions: None  # type: ignore[method-assign]


def read_trees_as_prompts() -> None:
    """Layers with latent attention read the rows of drafts as vLLM does where a backend takes one row of a request: as
    the end of a prompt, whose length the host knows."""
    from vllm_specext.engine.verification import latent_chains, model_state
    from vllm_specext.engine.verification.layout import TreeLayout

    for module in (latent_chains, model_state):
        module.divide_by_drafts = lambda: None
    TreeLayout.attach = lambda self, metadata, names, causal=None: None  # type: ignore[method-assign]
