"""A MoA drafter with random weights, targets for it, and how close what they compute has to be."""

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM

from vllm_specext.methods.moa.checkpoint import LayerShape, MoAShape
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.training.moa.target import TargetStates, target_states

E_, LAYERS, LENGTH = 64, 3, 24
KV_WIDTH = 64
SHAPE = MoAShape(
    hidden_size=E_,
    kv_width=KV_WIDTH,
    self_attention=LayerShape(E_, 4, 2, 16, 40),
    cross_attention=LayerShape(E_, 4, 4, 16, 48),
    layer_self_attention=LayerShape(KV_WIDTH, 4, 1, 16, 24),
    vocab_size=50,
    rms_norm_eps=1e-5,
    rope_theta=500.0,
    max_position_embeddings=64,
    num_target_layers=LAYERS,
)
SIZES = {
    "vocab_size": 50,
    "hidden_size": E_,
    "intermediate_size": 48,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "initializer_range": 0.2,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def scaled_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, rope_parameters=LLAMA3)).eval().requires_grad_(False)


def biased_qwen() -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    model = Qwen2ForCausalLM(Qwen2Config(**SIZES, use_sliding_window=False)).eval().requires_grad_(False)
    for layer in model.base_model.layers:
        for name in ("q_proj", "k_proj", "v_proj"):
            layer.self_attn.get_submodule(name).bias.normal_()
    return model


def normed_qwen3() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    model = Qwen3ForCausalLM(Qwen3Config(**SIZES, use_sliding_window=False)).eval().requires_grad_(False)
    for layer in model.base_model.layers:
        for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
            norm.weight.normal_(1.0, 0.3)
    return model


def plain_drafter() -> MoADrafter:
    torch.manual_seed(1)
    model = MoADrafter(SHAPE).requires_grad_(False)
    for parameter in model.parameters():
        parameter.normal_(1.0 if parameter.ndim == 1 else 0.0, 0.15)
    return model


def seen(target: LlamaForCausalLM, last_layers: int = 0, rows: int = 2, length: int = LENGTH) -> TargetStates:
    tokens = torch.randint(0, 50, (rows, length), generator=torch.Generator().manual_seed(2))
    return target_states(target, tokens, torch.ones_like(tokens, dtype=torch.bool), last_layers)


def assert_same(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)


def is_same(actual: Tensor, expected: Tensor) -> bool:
    return torch.allclose(actual, expected, rtol=1e-3, atol=1e-3)


def causal(length: int, new: int | None = None) -> Tensor:
    """The mask of the last ``new`` of ``length`` tokens."""
    mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
    return mask if new is None else mask[:, :, length - new :]
