"""The gather in torch, one cache after the other."""

from collections.abc import Sequence

from torch import Tensor


def gather(caches: Sequence[Tensor], slots: Tensor) -> Tensor:
    _, heads, _, width = caches[0].shape
    out = caches[0].new_zeros(len(slots), len(caches) // 2, heads, 2, width)
    real = slots >= 0
    slots = slots[real]
    for place, cache in enumerate(caches):
        page_size = cache.shape[2]
        out[:, place // 2, :, place % 2][real] = cache[slots // page_size, :, slots % page_size]
    return out
