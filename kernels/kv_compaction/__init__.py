"""Moves the keys and values of an accepted path to where a chain would have written them.

The nodes of a path lie in ascending slots, none before its place on the path, so that a kernel may move them in place
in ascending order.
"""

from collections.abc import Sequence

from torch import Tensor

from vllm_specext.kernels.kv_compaction import naive


def compact(caches: Sequence[Tensor], source: Tensor, destination: Tensor) -> None:
    """For every cache ``[pages, Hkv, page size, D]``, of any strides, copy slot ``source[r, i]`` to
    ``destination[r, i]``; both ``[R, L]`` int64, slots counted over all pages. Equal slots are left as they are."""
    naive.compact(caches, source, destination)
