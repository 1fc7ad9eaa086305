"""How long something takes on the GPU.

Device time between two events, the median of many runs after a warm-up. A step of a model leaves nothing in the L2
cache of what the last one read. So what is small is measured on several copies of its data in turn, and before every
run other memory is read, unless asked otherwise: written, it would have to leave the cache while the run is measured.
Code is replayed from a CUDA graph where it can be captured, which leaves the host out of the figure; ``graph=False``
leaves it in.
On a CPU the same calls measure wall time, so that everything around a measurement can be tried without a GPU.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
REPEATS = 25
WARM_UP = 3
CACHE_BYTES = 512 << 20
"""Four times as large as the L2 of any GPU so far."""
MOST_COPIES = 8


@dataclass(frozen=True)
class Timing:
    us: float
    low_us: float
    high_us: float
    """Tenth and ninetieth percentile."""
    how: str
    """``graph``, ``eager`` or, without a GPU, ``host``."""

    def row(self) -> dict[str, Any]:
        return {key: round(value, 2) if isinstance(value, float) else value for key, value in asdict(self).items()}


def measure(
    *functions: Callable[[], Any], graph: bool = True, calls: int = 1, flush: bool = True, repeats: int = REPEATS
) -> Timing:
    """Microseconds of one call. ``functions`` do the same on copies of the data, one after another. ``calls``: how
    often all of them are in a graph, to hide the graph's own launch in calls that take little longer than it does."""

    def all_functions() -> None:
        for function in functions:
            function()

    if DEVICE == "cpu":
        return _summary([one / len(functions) for one in _on_host(all_functions, repeats)], "host")
    for _ in range(WARM_UP):
        all_functions()
    torch.cuda.synchronize()
    replay = _captured(all_functions, calls) if graph else None
    taken = _on_device(replay or all_functions, flush, repeats)
    count = len(functions) * (calls if replay else 1)
    return _summary([one / count for one in taken], "graph" if replay else "eager")


def copies_for(size: int) -> int:
    """How many copies of so many bytes of data are needed, for none to be found in the cache when its turn comes."""
    return 1 if DEVICE == "cpu" else min(MOST_COPIES, max(1, -(-CACHE_BYTES // size)))


def _captured(function: Callable[[], Any], calls: int) -> Callable[[], None] | None:
    """Replays ``calls`` calls; ``None`` where they cannot be captured."""
    captured, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    try:
        # Not `torch.cuda.graph`: it empties the allocator's cache every time, and does not give back the stream when a
        # capture fails.
        with torch.cuda.stream(stream):
            captured.capture_begin()
            try:
                for _ in range(calls):
                    function()
            finally:
                captured.capture_end()
    except RuntimeError:  # it waits for the device, or allocates behind torch's back
        torch.cuda.synchronize()
        return None
    torch.cuda.current_stream().wait_stream(stream)
    return captured.replay


def _on_device(function: Callable[[], Any], flush: bool, repeats: int) -> list[float]:
    function()
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for begun, ended in events:
        if flush:
            _cache_filler().sum()
        begun.record()
        function()
        ended.record()
    torch.cuda.synchronize()
    return [1000 * begun.elapsed_time(ended) for begun, ended in events]


def _on_host(function: Callable[[], Any], repeats: int) -> list[float]:
    function()
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        function()
        taken.append(1e6 * (time.perf_counter() - begun))
    return taken


@cache
def _cache_filler() -> Tensor:
    return torch.zeros(CACHE_BYTES // 4, dtype=torch.float32, device="cuda")


def _summary(taken: list[float], how: str) -> Timing:
    ordered = sorted(taken)
    tenth = len(ordered) // 10
    return Timing(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], how)
