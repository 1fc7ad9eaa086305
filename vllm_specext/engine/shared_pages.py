"""Pages of as many tokens for a target's layers and a drafter's. On a CPU vLLM's kernels want other numbers of tokens a
page for latent attention and for attention over keys and values."""

import torch
from vllm.config import ModelConfig
from vllm.platforms import current_platform

from vllm_specext.errors import ConfigurationError


def refuse_unshared_pages(target: ModelConfig) -> None:
    """Refuse a ``target`` with latent attention (MLA) for a drafter that has keys and values for each head.

    Raises ``ConfigurationError``.
    """
    # Where there is AMX, another backend has any number.
    if not current_platform.is_cpu() or not target.use_mla or torch.cpu._is_amx_tile_supported():
        return
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend
    from vllm.v1.attention.backends.mla.cpu_mla import CPUMLABackend

    (latent,) = CPUMLABackend.get_supported_kernel_block_sizes()
    others = [getattr(size, "base", size) for size in CPUAttentionBackend.get_supported_kernel_block_sizes()]
    if not any(latent % size == 0 for size in others):
        raise ConfigurationError(
            "on a CPU a target with latent attention (MLA) cannot have a drafter with keys and values for each head, "
            f"because vLLM's kernels want {latent} tokens a page for the one and a multiple of {others[0]} for the "
            "other; choose its own module (method 'mtp-tree'), another drafter with latent attention, or 'given'."
        )
