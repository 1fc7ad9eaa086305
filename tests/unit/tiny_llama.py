"""A target for tests of training: a Llama that is random, sure of itself, and small."""

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY = 50


def tiny_llama(layers: int, vocab_size: int = VOCABULARY, positions: int = 64) -> LlamaForCausalLM:
    """The same one for the same sizes, of hidden size 32."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=positions,
        rope_parameters={"rope_type": "default", "rope_theta": 30000.0},
        initializer_range=0.3,
    )
    return LlamaForCausalLM(config).eval().requires_grad_(False)


def random_rows(count: int, length: int, seed: int = 0) -> Tensor:
    """Token ids ``[count, length]``, the same ones for the same ``seed``."""
    return torch.randint(0, VOCABULARY, (count, length), generator=torch.Generator().manual_seed(seed))
