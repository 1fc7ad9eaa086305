"""An untrained EAGLE-3 drafter for the target of ``tiny_llama.py``."""

from collections.abc import Sequence

from transformers import LlamaForCausalLM

from vllm_specext.training.eagle3.model import Eagle3Drafter, new_eagle3_drafter
from vllm_specext.training.eagle3.shape import Eagle3Shape, layers_to_read


def tiny_eagle3(target: LlamaForCausalLM, own_head: bool = False, tokens: Sequence[int] | None = None) -> Eagle3Drafter:
    """The same one for the same target, with a key for each query; with its ``own_head`` for some ``tokens`` or for
    all."""
    config = target.config
    scored = config.vocab_size if tokens is None else len(tokens)
    shape = Eagle3Shape(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_attention_heads,
        head_dim=config.head_dim,
        mlp_size=56,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=config.rope_parameters["rope_theta"],
        max_position_embeddings=config.max_position_embeddings,
        layers=layers_to_read(config.num_hidden_layers),
        draft_vocab_size=scored if own_head else None,
    )
    return new_eagle3_drafter(shape, target.model.norm.weight, head=target.lm_head.weight, tokens=tokens)
