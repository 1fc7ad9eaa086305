"""MoA drafters as training finds them: widths from the target, weights at random."""

from typing import TYPE_CHECKING, Literal

import torch

from vllm_specext.methods.moa.checkpoint import LayerShape, MoAShape
from vllm_specext.methods.moa.model import MoADrafter
from vllm_specext.training.moa.target import target_rotary

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def new_moa_drafter(
    target: "PreTrainedModel",
    *,
    mlp_size: int,
    kv_heads: int,
    lsa_mlp_size: int,
    lsa_kv_heads: int,
    with_lsa: bool = True,
    target_layer_inference: int = 0,
    norm_weights: Literal["ones", "normal"] = "ones",
    seed: int = 0,
) -> MoADrafter:
    """An untrained drafter for ``target``. Matrices are drawn from N(0, 0.02), biases are zero.

    ``norm_weights`` ``normal`` draws those of the norms from the same distribution, as the official code does.
    """
    config = target.config
    attention = target.base_model.layers[0].self_attn
    qkv_bias = attention.q_proj.bias is not None
    heads, width, head_dim = config.num_attention_heads, config.hidden_size, attention.head_dim
    kv_width = 2 * config.num_key_value_heads * head_dim
    rotary = target_rotary(config)
    # The even number at or below the published ``kv_width / heads``, which need not be a whole one.
    lsa_head_dim = kv_width // (2 * heads) * 2
    lsa = LayerShape(kv_width, heads, lsa_kv_heads, lsa_head_dim, lsa_mlp_size, qkv_bias)
    shape = MoAShape(
        hidden_size=width,
        kv_width=kv_width,
        self_attention=LayerShape(width, heads, kv_heads, head_dim, mlp_size, qkv_bias),
        cross_attention=LayerShape(width, heads, kv_heads, head_dim, mlp_size),
        layer_self_attention=lsa if with_lsa else None,
        vocab_size=config.vocab_size,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=rotary.theta,
        rope_scaling=rotary.scaling,
        max_position_embeddings=config.max_position_embeddings,
        target_layer_inference=target_layer_inference,
        num_target_layers=config.num_hidden_layers,
    )
    model = MoADrafter(shape)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2 or (norm_weights == "normal" and "norm" in name):
                parameter.normal_(0.0, 0.02, generator=generator)
            elif name.endswith("bias"):
                parameter.zero_()
    return model
