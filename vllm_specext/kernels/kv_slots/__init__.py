"""Where in a paged cache the keys and values of a drafter's rows go, in one launch where there is Triton and one call
where there is C++: in torch they are ten small ones for every pass over a level.
"""

from torch import Tensor

from vllm_specext.kernels.kv_slots import naive, native
from vllm_specext.kernels.kv_slots.naive import NOWHERE
from vllm_specext.kernels.pointers import HAS_TRITON

__all__ = ["NOWHERE", "kv_slots"]


def kv_slots(block_table: Tensor, slots: Tensor, written: Tensor, page_size: int, limit: int) -> Tensor:
    """KV slots of the cache, ``[R q]`` int64, for ``slots`` ``[R, q]`` int64 that are counted within requests and not
    negative; ``NOWHERE`` for rows that are not ``written`` (``[R, q]`` or ``[R, 1]`` bool), and from ``limit`` on.

    ``block_table``: each request's pages, ``[R, blocks]`` int32, of ``page_size`` slots; ``limit`` is at most
    ``blocks * page_size``.
    """
    given = block_table, slots, written.expand(slots.shape), page_size, limit
    if slots.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.kv_slots import kernel  # a CPU has no use for Triton, nor time to import it

        return kernel.kv_slots(*given)
    return native.kv_slots(*given) if native.takes(block_table, slots) else naive.kv_slots(*given)
