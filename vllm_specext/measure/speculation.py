"""The counters of a server or an engine about drafts, those of our methods and of vLLM's own alike."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

OURS, VLLM = "vllm:specext_num_", "vllm:spec_decode_num_"


@dataclass(frozen=True)
class Speculation:
    """Verifications, nodes verified and tokens accepted at depth 1, 2, ...; all 0 without drafts."""

    verifications: float = 0
    nodes: float = 0
    accepted: tuple[float, ...] = ()

    def __add__(self, other: "Speculation") -> "Speculation":
        accepted = map(sum, zip_longest(self.accepted, other.accepted, fillvalue=0))
        return Speculation(self.verifications + other.verifications, self.nodes + other.nodes, tuple(accepted))

    def __sub__(self, other: "Speculation") -> "Speculation":
        return self + Speculation(-other.verifications, -other.nodes, tuple(-count for count in other.accepted))

    def per_verification(self, count: float) -> float:
        return round(count / self.verifications, 3) if self.verifications else 0.0

    @property
    def acceptance_length(self) -> float:
        """Mean tokens per verification: those accepted and the target's own."""
        return round(1 + self.per_verification(sum(self.accepted)), 3)


def counted(samples: Iterable[Any]) -> Speculation:
    """Read Prometheus' samples or ``LLM.get_metrics()``: our own counters where there are any, else vLLM's; all 0
    without drafts."""
    found = list(samples)
    ours = [sample for sample in found if sample.name.startswith(OURS)]
    return of_ours(ours) if ours else of_vllm(found)


def of_ours(samples: Sequence[Any]) -> Speculation:
    """Read our counters."""
    told = Speculation()
    depths: dict[int, float] = {}
    for sample in samples:
        name = sample.name.removesuffix("_total").removeprefix(OURS)
        if name == "verifications":
            told += Speculation(sample.value, int(sample.labels["nodes"]) * sample.value)
        elif name == "accepted_tokens_per_depth":
            depths[int(sample.labels["depth"])] = sample.value
    return Speculation(told.verifications, told.nodes, by_depth(depths))


def of_vllm(samples: Sequence[Any]) -> Speculation:
    """Read vLLM's counters; a token's position in a chain is its depth."""
    counts = {"drafts": 0.0, "draft_tokens": 0.0}
    depths: dict[int, float] = {}
    for sample in samples:
        name = sample.name.removesuffix("_total").removeprefix(VLLM)
        if name in counts:
            counts[name] += sample.value
        elif name == "accepted_tokens_per_pos":
            # A list from an engine, a sample with a label for each position from a server.
            values = getattr(sample, "values", None)
            depths |= dict(enumerate(values)) if values is not None else {int(sample.labels["position"]): sample.value}
    return Speculation(counts["drafts"], counts["draft_tokens"], by_depth(depths))


def by_depth(counts: dict[int, float]) -> tuple[float, ...]:
    return tuple(counts[depth] for depth in sorted(counts))
