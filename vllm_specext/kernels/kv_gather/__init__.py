"""Collects what the target has cached for some tokens, in all layers: what MoA's layer self-attention (LSA) reads."""

from torch import Tensor

from vllm_specext.kernels.kv_gather import naive, native
from vllm_specext.kernels.pointers import HAS_TRITON, Caches


def gather(caches: Caches, slots: Tensor) -> Tensor:
    """Keys and values ``[T, L, Hkv, 2, D]`` of ``slots`` ``[T]`` int64, counted over all pages; zeros where a slot is
    negative. ``caches``: keys and values of ``L`` layers in turn, alike in heads, width and data type."""
    if slots.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.kv_gather import kernel  # a CPU has no use for Triton, nor time to import it

        return kernel.gather(caches, slots)
    if native.takes(caches, slots):
        return native.gather(caches, slots)
    return naive.gather(caches, slots)
