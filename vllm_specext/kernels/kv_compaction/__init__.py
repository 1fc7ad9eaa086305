"""Moves the keys and values of an accepted path to where a chain would have written them.

The nodes of a path lie in ascending slots, none before its place on the path, so that a kernel may move them in place
in ascending order.
"""

from torch import Tensor

from vllm_specext.kernels.kv_compaction import naive, native
from vllm_specext.kernels.pointers import HAS_TRITON, Caches


def compact(caches: Caches, source: Tensor, destination: Tensor) -> None:
    """In every cache copy slot ``source[r, i]`` to ``destination[r, i]``; both ``[R, L]`` int64, slots counted over all
    pages. Where the two are equal nothing is read or written, whatever they are."""
    if source.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.kv_compaction import kernel  # a CPU has no use for Triton, nor time to import it

        kernel.compact(caches, source, destination)
    elif native.takes(caches, source, destination):
        native.compact(caches, source, destination)
    else:
        naive.compact(caches, source, destination)
