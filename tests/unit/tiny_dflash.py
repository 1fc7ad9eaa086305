"""An untrained DFlash drafter for the target of ``tiny_llama.py``."""

import torch
from transformers import LlamaForCausalLM

from vllm_specext.methods.block.model import DFlashDrafter
from vllm_specext.training.dflash.shape import DFlashShape, layers_to_read


def tiny_dflash(target: LlamaForCausalLM, block: int = 6) -> tuple[DFlashShape, DFlashDrafter]:
    """The same one for the same target, of two layers."""
    config = target.config
    shape = DFlashShape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        layers=2,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        mlp_size=56,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position_embeddings=config.max_position_embeddings,
        target_layers=config.num_hidden_layers,
        reads=layers_to_read(config.num_hidden_layers),
        block=block,
        mask=1,
    )
    torch.manual_seed(0)
    return shape, DFlashDrafter(shape.sizes())
