"""How keys and values may lie in a cache: views ``[pages, Hkv, page size, D]`` of ``[pages, Hkv, page size, 2 D]``."""

import mmap
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

MAP_NORESERVE = 0x4000
"""Linux's, which Python's module names from 3.13 on."""

Layout = Callable[[Tensor], tuple[Tensor, Tensor]]


def halves(cache: Tensor) -> tuple[Tensor, Tensor]:
    """A GPU's pages: keys beside values."""
    keys, values = cache.chunk(2, dim=-1)
    return keys, values


def transposed_keys(cache: Tensor) -> tuple[Tensor, Tensor]:
    """A CPU's pages: of each head the transposed keys, then the values."""
    pages, heads, page_size, width = cache.shape
    split = cache.view(pages, heads, 2, page_size * width // 2)
    keys = split[:, :, 0].unflatten(-1, (width // 2, page_size)).transpose(2, 3)
    return keys, split[:, :, 1].unflatten(-1, (page_size, width // 2))


def token_major(cache: Tensor) -> tuple[Tensor, Tensor]:
    """Pages that hold all heads of a token together."""
    return halves(torch.empty_like(cache.transpose(1, 2)).transpose(1, 2))


def latent(further: int) -> Layout:
    """Keys alone, which are the values too, but for so many numbers after them."""

    def of(cache: Tensor) -> tuple[Tensor, Tensor]:
        keys, _ = halves(cache)
        return keys, keys[..., :-further]

    return of


def far_apart(cache: Tensor) -> tuple[Tensor, Tensor]:
    """A GPU's pages over 2^32 elements, so that half of them begin later than an int32 counts. Nobody touches what lies
    between, and a CPU has no memory for it."""
    if cache.is_cuda:
        pytest.skip("a GPU would have memory for all that lies between, and may hold engines")
    step = 2**32 // (len(cache) - 1) // 64 * 64
    count = (len(cache) - 1) * step + cache[0].numel()
    pages = mmap.mmap(-1, count * cache.element_size(), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
    room = torch.frombuffer(pages, dtype=torch.uint8).view(cache.dtype)
    return halves(room.as_strided(cache.shape, (step, *cache.stride()[1:])))
