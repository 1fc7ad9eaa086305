"""The accepted paths as a drafter's pass reads them, in buffers that stay where they are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.engine.drafting.node_passes import Nodes, in_order
from vllm_specext.engine.verification.layout import AcceptedPaths


@dataclass(frozen=True)
class PathInputs:
    """Paths of ``R`` requests, ``W`` rows each (levels + 1)."""

    ids: Tensor
    """Tokens, ``[R, W]`` int64."""
    starts: Tensor
    """KV slot of the root, counted within the request, ``[R]`` int64."""
    ends: Tensor
    """Last row that counts, ``[R]`` int64."""

    @classmethod
    def buffers(cls, requests: int, width: int, device: torch.device) -> "PathInputs":
        ids = torch.zeros(requests, width, dtype=torch.int64, device=device)
        starts, ends = (torch.zeros(requests, dtype=torch.int64, device=device) for _ in range(2))
        return cls(ids, starts, ends)

    def part(self, requests: int) -> "PathInputs":
        """The first so many ``requests``."""
        return PathInputs(self.ids[:requests], self.starts[:requests], self.ends[:requests])

    def take(self, ids: Tensor, paths: AcceptedPaths, num_sampled: Tensor) -> None:
        """Fill in ``ids`` ``[V, W]`` of the accepted ``paths``, of which ``num_sampled`` ``[V]`` rows count."""
        requests = len(ids)
        self.ids[:requests] = ids
        self.starts[:requests] = paths.prefix_lens
        self.ends[:requests] = num_sampled - 1

    def nodes(self, written: Tensor, causal: Tensor, features: Tensor | None = None) -> Nodes:
        """The rows as nodes of a pass, each of which sees those before it: ``causal`` ``[W, words]``. The cache gets
        those of the requests that are ``written`` ``[R]``. ``features`` ``[R, W, d]``."""
        slots = self.slots
        return Nodes(
            ids=self.ids,
            positions=slots,
            slots=slots,
            written=written[:, None] & self.counts,
            prefix_lens=self.starts,
            visible=in_order(causal, self.ends),
            features=features,
        )

    def mask(self, first: int, end: int) -> None:
        """Make requests ``first`` to ``end`` padding: their one row is at the beginning of a text."""
        self.starts[first:end] = 0
        self.ends[first:end] = 0

    @property
    def width(self) -> int:
        """``W``"""
        return self.ids.shape[1]

    @property
    def place(self) -> Tensor:
        """Number of each row in its path, ``[W]``."""
        return torch.arange(self.width, device=self.ids.device)

    @property
    def slots(self) -> Tensor:
        """KV slots of the rows, counted within the request, which are their positions too, ``[R, W]``."""
        return self.starts[:, None] + self.place

    @property
    def counts(self) -> Tensor:
        """Whether a row is on the path, ``[R, W]`` bool."""
        return self.place <= self.ends[:, None]
