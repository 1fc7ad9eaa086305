"""The bundled EAGLE-3 drafter: its sizes."""

from typing import TYPE_CHECKING

from vllm_specext.training.eagle3.model import Eagle3Drafter, new_eagle3_drafter
from vllm_specext.training.eagle3.shape import Eagle3Shape, layers_to_read

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM

MLP_SIZE = 704
HEADS = 4
"""Heads of queries, keys and values, as many of each as in the bundled GRIFFIN drafter."""


def shape_for(config: "LlamaConfig") -> Eagle3Shape:
    return Eagle3Shape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=config.head_dim,
        mlp_size=MLP_SIZE,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position_embeddings=config.max_position_embeddings,
        layers=layers_to_read(config.num_hidden_layers),
    )


def drafter_for(target: "LlamaForCausalLM") -> Eagle3Drafter:
    """An untrained drafter with the bundled one's widths."""
    return new_eagle3_drafter(shape_for(target.config), target.model.norm.weight)
