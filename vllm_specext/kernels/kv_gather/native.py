"""The gather in C++ on a CPU, in bytes. It reads the caches by their addresses."""

from torch import Tensor, uint8

from vllm_specext.kernels.native.operators import BYTE, INTEGER, LONG, Operator
from vllm_specext.kernels.pointers import Caches

OPERATOR = Operator("gather", {"places": LONG, "slots": INTEGER, "out": BYTE})


def takes(caches: Caches, slots: Tensor) -> bool:
    known = len(caches) > 0 and caches[0].is_cpu and caches.alike and len(caches) % 2 == 0
    return known and OPERATOR.takes(caches.places, slots)


def gather(caches: Caches, slots: Tensor) -> Tensor:
    _, heads, _, width = caches[0].shape
    out = caches[0].new_empty(len(slots), len(caches) // 2, heads, 2, width)
    OPERATOR.overload(caches.places, slots, out.view(uint8))
    return out
