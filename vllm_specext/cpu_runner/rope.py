"""Body for ``v1/worker/gpu/mm/rope.py``: positions on several axes."""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

import numpy as np
import torch

from vllm_specext.cpu_runner.ragged import lengths_between, rows_and_offsets


def prepare_rope_positions(
    positions: torch.Tensor,
    positions_stride: int,
    prefill_positions: torch.Tensor,
    prefill_positions_stride0: int,
    prefill_positions_stride1: int,
    prefill_delta: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    prefill_lens: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    BLOCK_SIZE: int,
    NUM_DIMS: int,
) -> None:
    """Write the `positions` `[NUM_DIMS, T + 1]` int64 of a step's tokens: those of a prompt from `prefill_positions`
    `[M NUM_DIMS, max_model_len]`, and after it the token's place plus the request's `prefill_delta` `[M]`."""
    slots = idx_mapping.numpy()
    starts = query_start_loc.numpy()[: len(slots) + 1]
    row, offset = rows_and_offsets(lengths_between(starts))
    slot, to = slots[row], starts[:-1][row] + offset
    computed = num_computed_tokens.numpy()[slot]
    place = computed + offset
    after = computed >= prefill_lens.numpy()[slot]
    known, written = prefill_positions.numpy(), positions.numpy()
    within = np.minimum(place, known.shape[1] - 1)
    for axis in range(NUM_DIMS):
        written[axis, to] = np.where(after, place + prefill_delta.numpy()[slot], known[NUM_DIMS * slot + axis, within])
