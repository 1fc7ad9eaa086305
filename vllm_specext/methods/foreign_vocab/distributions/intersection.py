"""TLI's vocabulary (Timor et al., arXiv 2502.05202, Algorithm 4): the tokens that target and drafter share, on the
device.

The drafter's distribution is restricted to them and renormalised: drafts are drawn from that distribution, and no other
may be given to the verification. The target's is never restricted. Rows, columns and ids are always in the order of
``kept``, ascending by the drafter's id.
Shapes: ``R`` rows, ``I`` shared tokens, ``D`` and ``T`` the vocabularies.
"""

from collections.abc import Mapping

import torch
from torch import Tensor


class Intersection:
    kept: Tensor
    """``[I]`` int64: the drafter's ids, ascending."""
    target_ids: Tensor
    """``[I]`` int64: the target's id of each; no id twice."""

    def __init__(self, shared: Mapping[int, int], target_size: int, device: torch.device | str = "cpu") -> None:
        """``shared``: the drafter's id -> the target's, one or more, ascending by the drafter's."""
        self.target_size = target_size
        self.kept = torch.tensor(list(shared), dtype=torch.int64, device=device)
        self.target_ids = torch.tensor(list(shared.values()), dtype=torch.int64, device=device)

    def prune(self, head: Tensor) -> Tensor:
        """The rows ``[I, ...]`` of a head's weight or bias ``[D, ...]``, as a copy: where a drafter's head is its
        embedding too, that must stay whole."""
        return head.index_select(0, self.kept)

    def select(self, logits: Tensor) -> Tensor:
        """The logits ``[R, I]`` that the pruned head would have given, from those of the whole head, ``[R, D]``."""
        return logits.index_select(-1, self.kept)

    def scatter(self, values: Tensor, absent: float) -> Tensor:
        """Spread ``[R, I]`` over ``[R, T]``; the target's other tokens get ``absent``, which is 0 for probabilities and
        -inf for logits."""
        return values.new_full((*values.shape[:-1], self.target_size), absent).index_copy_(-1, self.target_ids, values)
