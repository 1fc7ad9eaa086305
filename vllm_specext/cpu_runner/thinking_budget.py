"""Bodies for ``sample/thinking_budget.py``: end a reasoning section that has used up its budget.

vLLM keeps the last marker positions between steps so that a step reads new tokens only. A numpy comparison over the
whole sequence costs microseconds, so here every step looks again and the cached positions are never read.
"""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

import numpy as np
import torch

from vllm_specext.cpu_runner.ragged import IntArray

# The kernel writes this logit, larger than any real one, for the token that it forces.
_FORCED_LOGIT = 1.0e9


def update_committed_marker_cache(
    req_ids: torch.Tensor,
    thinking_token_budget: torch.Tensor,
    all_token_ids: torch.Tensor,
    all_token_ids_stride: int,
    total_len: torch.Tensor,
    cached_last_start: torch.Tensor,
    cached_last_end: torch.Tensor,
    cached_scan_pos: torch.Tensor,
    reasoning_start_token_ids: torch.Tensor,
    natural_reasoning_end_token_ids: torch.Tensor,
    START_LEN: int,
    NATURAL_END_LEN: int,
    MAX_LEN: int,
    BLOCK: int,
) -> None:
    """Leave the cache alone: ``thinking_budget`` below does not read it."""


def _last_occurrence(tokens: IntArray, marker: IntArray) -> int:
    """Return where `marker` begins for the last time in `tokens`, or -1."""
    if len(tokens) < len(marker):
        return -1
    found = np.flatnonzero((np.lib.stride_tricks.sliding_window_view(tokens, len(marker)) == marker).all(axis=1))
    return int(found[-1]) if len(found) else -1


def thinking_budget(
    logits: torch.Tensor,
    logits_stride: int,
    expanded_idx_mapping: torch.Tensor,
    thinking_token_budget: torch.Tensor,
    all_token_ids: torch.Tensor,
    all_token_ids_stride: int,
    total_len: torch.Tensor,
    input_ids: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    cached_last_start: torch.Tensor,
    cached_last_end: torch.Tensor,
    reasoning_start_token_ids: torch.Tensor,
    natural_reasoning_end_token_ids: torch.Tensor,
    reasoning_end_token_ids: torch.Tensor,
    START_LEN: int,
    NATURAL_END_LEN: int,
    END_LEN: int,
) -> None:
    """Force the next token of the end marker in rows of `logits` `[L, V]` whose open reasoning is over its budget."""
    slots = expanded_idx_mapping.numpy()
    budgets = thinking_token_budget.numpy()[slots]
    local_pos = expanded_local_pos.numpy()
    end = reasoning_end_token_ids.numpy()
    for row in np.flatnonzero(budgets >= 0):
        first_draft = row - local_pos[row] + 1
        tokens = np.concatenate(
            (
                all_token_ids.numpy()[slots[row], : total_len.numpy()[slots[row]]],
                input_ids.numpy()[first_draft : row + 1],
            )
        )
        start = _last_occurrence(tokens, reasoning_start_token_ids.numpy())
        if start < 0 or start <= _last_occurrence(tokens, natural_reasoning_end_token_ids.numpy()):
            continue
        if len(tokens) - start - START_LEN < budgets[row]:
            continue
        written = [n for n in range(1, min(END_LEN - 1, len(tokens)) + 1) if (tokens[-n:] == end[:n]).all()]
        logits[int(row), int(end[max(written, default=0)])] = _FORCED_LOGIT
