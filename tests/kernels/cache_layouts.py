"""How keys and values may lie in a cache: views ``[pages, Hkv, page size, D]`` of ``[pages, Hkv, page size, 2 D]``."""

from collections.abc import Callable

import torch
from torch import Tensor

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
