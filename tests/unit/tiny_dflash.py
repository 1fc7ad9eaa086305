"""Untrained DFlash and DSpark drafters for the target of ``tiny_llama.py``."""

from dataclasses import replace

import torch
from torch import nn
from transformers import LlamaForCausalLM

from vllm_specext.training.block.models import TrainedDFlash, TrainedDSpark
from vllm_specext.training.block.shape import BlockDrafterShape, layers_to_read


def tiny_dflash(target: LlamaForCausalLM, block: int = 6) -> TrainedDFlash:
    """The same one for the same target, of two layers."""
    torch.manual_seed(0)
    return TrainedDFlash(_shape(target, block))


def tiny_dspark(target: LlamaForCausalLM, block: int = 5, *, confidence: bool = True) -> TrainedDSpark:
    """The same one for the same target, of two layers, with a Markov head that says something."""
    torch.manual_seed(0)
    drafter = TrainedDSpark(replace(_shape(target, block), markov_rank=4, confidence=confidence))
    for table in drafter.markov_head.parameters():
        nn.init.normal_(table, std=0.7)
    return drafter


def _shape(target: LlamaForCausalLM, block: int) -> BlockDrafterShape:
    config = target.config
    return BlockDrafterShape(
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
