"""What steps cost on GPUs, by a roofline: bytes over bandwidth or operations over arithmetic, and what launches take.

Numbers of the makers, with the shares of them that large passes reach; nothing here was measured.
"""

from dataclasses import dataclass

BANDWIDTH_REACHED, ARITHMETIC_REACHED = 0.8, 0.6

CONTEXT = 1000
"""Tokens of a request's context."""

LAUNCHES = 6e-6
"""Seconds per layer that are not arithmetic, in a captured graph; twice as many where ranks exchange their results."""

HOST = 3e-4
"""Seconds of a step in which the device waits for the host, or samples."""


@dataclass(frozen=True)
class Gpu:
    name: str
    bandwidth: float
    """Bytes per second."""
    arithmetic: float
    """Operations per second, dense bfloat16."""
    ranks_for_70b: int


GPUS = (
    Gpu("A100", 2.0e12, 312e12, 4),
    Gpu("H100", 3.35e12, 989e12, 4),
    Gpu("H200", 4.8e12, 989e12, 2),
)


@dataclass(frozen=True)
class Model:
    """A model in bfloat16."""

    name: str
    weights: float
    layers: int
    kv_bytes: int
    """Of a token, in all layers."""
    head: float
    """Weights of the LM head, counted in ``weights`` too."""


TARGETS = (Model("8B", 8.0e9, 32, 131072, 0.53e9), Model("70B", 70.0e9, 80, 327680, 1.05e9))


@dataclass(frozen=True)
class Machine:
    """A model's place of work: one GPU, or as many ranks as it needs."""

    gpu: Gpu
    target: Model

    @property
    def ranks(self) -> int:
        return self.gpu.ranks_for_70b if self.target.name == "70B" else 1

    def seconds(self, weights: float, layers: float, rows: float, keys: float = 0.0) -> float:
        """Of a pass of ``rows`` over so many ``weights`` in ``layers``, which reads ``keys`` bytes of cache."""
        bandwidth = self.gpu.bandwidth * BANDWIDTH_REACHED * self.ranks
        arithmetic = self.gpu.arithmetic * ARITHMETIC_REACHED * self.ranks
        memory, computing = (2 * weights + keys) / bandwidth, 2 * weights * rows / arithmetic
        # Neither begins where the other ends: near the knee a pass takes longer than either.
        overlapped = (memory**4 + computing**4) ** 0.25
        return overlapped + layers * LAUNCHES * (1 if self.ranks == 1 else 2)

    def target_pass(self, requests: int, rows: int, share: float = 1.0) -> float:
        """Of the target, or of a ``share`` of its layers, over ``rows`` of each request."""
        keys = share * requests * CONTEXT * self.target.kv_bytes
        weights = share * (self.target.weights - self.target.head) + self.target.head
        return self.seconds(weights, share * self.target.layers, requests * rows, keys)
