"""Bodies for ``sample/thinking_budget.py``: end a reasoning section that has used up its budget.

vLLM keeps the last marker positions between steps so that a step reads new tokens only. A numpy comparison over the
whole sequence costs microseconds, so here every step looks again and the cached positions are never read.
"""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

import torch

from vllm_specext.kernels.path_text import naive


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
    markers = reasoning_start_token_ids, natural_reasoning_end_token_ids, reasoning_end_token_ids
    drafted = naive.drafted_in_chains(expanded_local_pos, input_ids)
    text = all_token_ids, total_len
    naive.end_thinking(logits, expanded_idx_mapping, drafted, thinking_token_budget, *text, *markers)
