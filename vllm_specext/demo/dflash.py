"""The bundled DFlash drafter: its sizes."""

from typing import TYPE_CHECKING

from vllm_specext.training.block.shape import BlockDrafterShape
from vllm_specext.training.eagle3.shape import layers_to_read

if TYPE_CHECKING:
    from transformers import LlamaConfig

HEADS = 4
"""Of queries, keys and values each."""
MLP_SIZE = 960
BLOCK = 5
"""Rows of a block: the last token of a text, and four mask tokens."""
MASK = 1
"""The token that stands for what is not drafted yet: the mark of a user's turn, which nothing drafts."""


def shape_for(config: "LlamaConfig") -> BlockDrafterShape:
    """A drafter of one layer, which reads the same states as the bundled EAGLE-3 drafter."""
    return BlockDrafterShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=1,
        heads=HEADS,
        kv_heads=HEADS,
        head_dim=config.head_dim,
        mlp_size=MLP_SIZE,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position_embeddings=config.max_position_embeddings,
        target_layers=config.num_hidden_layers,
        reads=layers_to_read(config.num_hidden_layers),
        block=BLOCK,
        mask=MASK,
    )
