"""Body for ``v1/worker/gpu/structured_outputs.py``: the grammar's token mask."""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

import numpy as np
import torch


def apply_grammar_bitmask(
    logits: torch.Tensor,
    logits_stride: int,
    logits_indices: torch.Tensor,
    cu_num_logits: torch.Tensor,
    bitmask: torch.Tensor,
    bitmask_stride: int,
    vocab_size: int,
    MASK_STRIDE: int,
    BLOCK_SIZE: int,
) -> None:
    """Mask the tokens of `logits` `[L, V]` whose bit in `bitmask` `[B, V / 32]` is 0.

    `logits_indices` `[B]` holds ``request * MASK_STRIDE + position``; positions after a request's rows are skipped.
    """
    request, position = np.divmod(logits_indices.numpy(), MASK_STRIDE)
    starts = cu_num_logits.numpy()
    row = starts[request] + position
    active = np.flatnonzero(row < starts[request + 1])
    allowed = np.unpackbits(bitmask.numpy()[active].view(np.uint8), axis=1, count=vocab_size, bitorder="little")
    rows = torch.from_numpy(row[active].astype(np.int64))
    logits[rows] = logits[rows].masked_fill(torch.from_numpy(allowed == 0), float("-inf"))
