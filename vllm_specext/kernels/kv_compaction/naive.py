"""KV compaction in torch: reads all slots of a cache before it writes the first."""

from collections.abc import Sequence

from torch import Tensor


def compact(caches: Sequence[Tensor], source: Tensor, destination: Tensor) -> None:
    moves = source != destination
    source, destination = source[moves], destination[moves]
    for cache in caches:
        page_size = cache.shape[2]
        moved = cache[source // page_size, :, source % page_size]
        cache[destination // page_size, :, destination % page_size] = moved
