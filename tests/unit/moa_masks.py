"""What MoA's layers see of whole sequences, as masks: the specification of training's ``passes.py``.

``last`` ``[B, T]`` is the last boundary at or before each position (``blocks.py``).
"""

import torch
from torch import Tensor


def memory_mask(last: Tensor) -> Tensor:
    """CA's mask ``[B, 1, T, T]``: everything up to the last boundary."""
    keys = torch.arange(last.shape[1], device=last.device)
    return (keys <= last[..., None])[:, None]


def token_mask(last: Tensor, block_only: Tensor) -> Tensor:
    """SA's mask ``[B, 1, T, T]``: causal, and in rows where ``block_only`` ``[B]`` is true the query's block alone.

    The second is the "staircase" with which training begins: it leaves SA no way to do without the memory.
    """
    keys = torch.arange(last.shape[1], device=last.device)
    queries = keys[:, None]
    causal = keys <= queries
    own_block = (keys > last[..., None]) | (keys == queries)
    return (causal & (own_block | ~block_only[:, None, None]))[:, None]


def two_key_sets(last_verified: Tensor) -> Tensor:
    """The mask ``[B, 1, T, 2T]`` with which `TargetLayers` run over whole sequences as they run when drafting.

    The first ``T`` keys are the target's own, visible up to ``last_verified`` ``[B, T]``; the others come from the
    drafter's features and are visible from there to the query.
    """
    length = last_verified.shape[1]
    keys = torch.arange(length, device=last_verified.device)
    verified = keys <= last_verified[..., None]
    causal = keys <= keys[:, None]
    return torch.cat((verified, causal & ~verified), dim=-1)[:, None]
