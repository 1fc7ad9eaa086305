"""What a query of MoA's training may see: the text in blocks of random length, so that one pass over a sequence stands
for drafting steps near and far from the verified text.

A *boundary* is a position whose own keys and values count as verified. Query ``i`` sees the memory of all tokens up to
the last boundary at or before it, which is what it would see in step ``i - boundary`` of drafting after verifying the
boundary. Boundaries themselves see more than a drafter could.
"""

import torch
from torch import Tensor

from vllm_specext.training.step import Share


def sample_boundaries(
    response: Tensor, drafted: tuple[int, int], generator: torch.Generator, share: Share | None = None
) -> Tensor:
    """``[B, T]``, true at boundaries: what is not ``response`` ``[B, T]``, the first position, and in each row every
    ``K + 1``-th position of the sequence, with ``K`` uniform in ``drafted``, both ends included.

    Where the rows are one process's ``share`` of a batch, a row's ``K`` is the one that it has in the whole batch.
    """
    low, high = drafted
    share = share or Share()
    every = torch.randint(low + 1, high + 2, (len(response) * share.processes, 1), generator=generator)
    positions = torch.arange(response.shape[1], device=response.device)
    return ~response.bool() | (positions % share.of(every).to(response.device) == 0)


def last_verified(boundaries: Tensor) -> Tensor:
    """The last boundary at or before each position: ``[B, T]``."""
    positions = torch.arange(boundaries.shape[1], device=boundaries.device)
    return (positions * boundaries).cummax(dim=1).values
