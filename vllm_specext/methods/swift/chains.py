"""SWIFT's chains while they are drafted, and the draft that a chain and its alternatives make.

Shapes: ``S`` requests that the buffers hold, ``R`` of a step, ``D`` levels.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.engine.drafting.tree_draft import TreeDraft
from vllm_specext.methods.swift.draft_tree import DraftTree
from vllm_specext.tree.swift_sizes import NUM_CANDIDATES


@dataclass(frozen=True)
class Chains:
    """Chains that are being drafted, in buffers that stay where they are."""

    ids: Tensor
    """The tokens to read next, ``[S]`` int64."""
    positions: Tensor
    """Their positions, which are their KV slots too, ``[S]`` int64."""
    tokens: Tensor
    """The most likely tokens of every level so far, ``[S, D, candidates]`` int64."""
    log_probs: Tensor
    """Their log-probabilities, ``[S, D, candidates]`` float32."""

    @classmethod
    def buffers(cls, requests: int, levels: int, device: torch.device) -> "Chains":
        ids, positions = (torch.zeros(requests, dtype=torch.int64, device=device) for _ in range(2))
        candidates = (requests, levels, NUM_CANDIDATES)
        tokens = torch.zeros(candidates, dtype=torch.int64, device=device)
        return cls(ids, positions, tokens, torch.zeros(candidates, dtype=torch.float32, device=device))

    def mask(self, first: int, end: int) -> None:
        """Make requests ``first`` to ``end`` padding."""
        self.ids[first:end] = 0
        self.positions[first:end] = 0


def of_chain(tree: DraftTree, tokens: Tensor, max_levels: int) -> TreeDraft:
    """The draft of a ``tree`` of at most ``max_levels`` levels around the chain of each level's best ``tokens``
    ``[R, D, candidates]``, which a request without a tree gets."""
    depths = tree.topology.depths
    levels = depths.masked_fill(depths > max_levels, 0).amax(dim=1, keepdim=True)
    return TreeDraft(tree.tokens, tree.topology, lambda: tokens[:, :, 0], levels, tree.num_nodes)
