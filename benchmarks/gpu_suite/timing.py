"""How long something takes on the GPU.

Device time between two events, the median of many runs after a warm-up. Before every run the L2 cache is overwritten
unless asked otherwise, because a step of a model leaves nothing of the last one there. Code is replayed from a CUDA
graph where it can be captured, which leaves the host out of the figure; ``graph=False`` leaves it in.
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
    function: Callable[[], Any], *, graph: bool = True, calls: int = 1, flush: bool = True, repeats: int = REPEATS
) -> Timing:
    """Microseconds of one call of ``function``. ``calls``: how many are in a graph, to hide the graph's own launch
    behind calls that take little longer than it does."""
    if DEVICE == "cpu":
        return _summary(_on_host(function, repeats), "host")
    for _ in range(WARM_UP):
        function()
    torch.cuda.synchronize()
    replay = _captured(function, calls) if graph else None
    taken = _on_device(replay or function, flush, repeats)
    return _summary([one / calls for one in taken], "graph") if replay else _summary(taken, "eager")


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
            _cache_filler().zero_()
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
    """Four times as large as the L2 of any GPU so far."""
    return torch.empty(256 << 20, dtype=torch.int8, device="cuda")


def _summary(taken: list[float], how: str) -> Timing:
    ordered = sorted(taken)
    tenth = len(ordered) // 10
    return Timing(statistics.median(ordered), ordered[tenth], ordered[-1 - tenth], how)
