"""The gather in torch, one cache after the other."""

from collections.abc import Sequence

from torch import Tensor


def gather(caches: Sequence[Tensor], slots: Tensor) -> Tensor:
    _, heads, _, width = caches[0].shape
    out = caches[0].new_zeros(len(slots), len(caches) // 2, heads, 2, width)
    real, slots = (slots >= 0)[:, None, None], slots.clamp(min=0)
    for place, cache in enumerate(caches):
        page_size = cache.shape[2]
        own = out[:, place // 2, :, place % 2]
        own.copy_(cache[slots // page_size, :, slots % page_size].where(real, own))
    return out
