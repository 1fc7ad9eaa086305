"""KV compaction in C++ on a CPU: reads all rows of a cache before it writes the first."""

from torch import Tensor

from vllm_specext.kernels.native.operators import INTEGER, LONG, Operator
from vllm_specext.kernels.pointers import Caches

OPERATOR = Operator(
    "compact", {"places": LONG, "source": INTEGER, "destination": INTEGER}, "Tensor(z!)[] caches"
)  # fmt: skip


def takes(caches: Caches, source: Tensor, destination: Tensor) -> bool:
    return len(caches) > 0 and caches[0].is_cpu and OPERATOR.takes(caches.places, source, destination)


def compact(caches: Caches, source: Tensor, destination: Tensor) -> None:
    OPERATOR.overload(caches.places, source, destination, list(caches))
