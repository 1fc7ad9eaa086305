"""The least time that a computation can take on this GPU: by the bytes it has to move and the products it has to form,
over what the GPU was measured to do, not over its data sheet."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from benchmarks.gpu_suite.timing import DEVICE, Timing, measure

# More bytes than any cache holds, and a product that fills any GPU; without a GPU a little, for trying.
BYTES, SIDE = (1 << 30, 8192) if DEVICE == "cuda" else (1 << 16, 64)


@dataclass(frozen=True)
class Work:
    """What has to be moved at least, each input and output once, and computed."""

    bytes: int
    flops: int = 0


@dataclass(frozen=True)
class Ceilings:
    bytes_per_us: float
    flops_per_us: float

    def floor_us(self, work: Work) -> float:
        return max(self.memory_us(work), work.flops / self.flops_per_us)

    def memory_us(self, work: Work) -> float:
        return work.bytes / self.bytes_per_us

    def shares(self, work: Work, us: float) -> dict[str, float]:
        """Of a computation that took ``us``: how much of the memory bandwidth it reached, and how much of the floor."""
        return {
            "bandwidth_share": round(self.memory_us(work) / us, 3),
            "floor_us": round(self.floor_us(work), 2),
            "floor_share": round(self.floor_us(work) / us, 3),
        }


def attention(
    requests: int, slots: int, rows: int, *, heads: int, kv_heads: int, head_size: int, element: int = 2
) -> Work:
    """``rows`` query rows per request over ``slots`` of keys and values."""
    keys = requests * slots * kv_heads * head_size
    queries = requests * rows * heads * head_size
    return Work(2 * element * (keys + queries), 4 * queries * slots)


def fusion(rows: int, *, hidden: int, inner: int, element: int = 2) -> Work:
    """Token-guided fusion: three matrices, a bias and two norms; features and embeddings in, hidden states out."""
    matrices = 2 * hidden * hidden + 2 * hidden * inner + inner * hidden
    return Work(element * (matrices + 3 * hidden + 3 * rows * hidden), 2 * rows * matrices)


@cache
def ceilings() -> Ceilings:
    """Measured once per process: memory by what moves more in a second, as an H200 read 4.3 TB and copied 2.8."""
    moved = max(work.bytes / timing.us for work, timing in (_copy(), _read()))
    product, multiplied = _multiply()
    return Ceilings(moved, product.flops / multiplied.us)


def rows() -> Iterator[dict[str, Any]]:
    """The part ``bandwidth``."""
    for name, (work, timing) in {"copy": _copy(), "read": _read(), "bf16 product": _multiply()}.items():
        terabytes = {"terabytes_per_second": round(work.bytes / timing.us / 1e6, 3)} if work.bytes else {}
        teraflops = {"teraflops": round(work.flops / timing.us / 1e6, 1)} if work.flops else {}
        yield {"what": name, **timing.row(), **terabytes, **teraflops}


def _copy() -> tuple[Work, Timing]:
    source = torch.empty(BYTES // 4, dtype=torch.float32, device=DEVICE).normal_()
    target = torch.empty_like(source)
    return Work(2 * source.nbytes), measure(lambda: target.copy_(source))


def _read() -> tuple[Work, Timing]:
    source = torch.empty(BYTES // 4, dtype=torch.float32, device=DEVICE).normal_()
    return Work(source.nbytes), measure(lambda: source.sum())


def _multiply() -> tuple[Work, Timing]:
    left, right = (torch.randn(SIDE, SIDE, device=DEVICE).bfloat16() for _ in range(2))
    out = torch.empty_like(left)
    return Work(0, 2 * SIDE**3), measure(lambda: torch.matmul(left, right, out=out))
