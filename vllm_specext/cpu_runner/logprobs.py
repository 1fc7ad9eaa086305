"""Bodies for the scores that a response reports: log-probabilities, ranks, NaN counts and their token ids.

Counterparts: ``sample/logprob.py``, ``sample/prompt_logprob.py``, ``metrics/logits.py``.
Shapes: `L` logits rows, `V` vocabulary, `K` scored tokens per row.
"""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

import numpy as np
import torch

from vllm_specext.cpu_runner.ragged import lengths_between, rows_and_offsets


def topk_log_softmax(
    output: torch.Tensor,
    logits: torch.Tensor,
    logits_stride: int,
    topk_ids: torch.Tensor,
    topk_ids_stride: int,
    topk: int,
    vocab_size: int,
    BLOCK_SIZE: int,
    TOPK_BLOCK_SIZE: int,
) -> None:
    """Write the log-softmax of `logits` `[L, V]` at `topk_ids` `[L, K]` int64 to `output` `[L, K]` float32."""
    scores = logits.float()
    largest = scores.amax(dim=-1, keepdim=True)
    log_sum = (scores - largest).exp_().sum(dim=-1, keepdim=True).log_()
    output.copy_(scores.gather(1, topk_ids) - largest - log_sum)


def ranks(
    output: torch.Tensor,
    logits: torch.Tensor,
    logits_stride: int,
    token_ids: torch.Tensor,
    vocab_size: int,
    BLOCK_SIZE: int,
) -> None:
    """Write how many logits of each row reach the one of `token_ids` `[L]` (1 = the likeliest) to `output` `[L]`."""
    torch.sum(logits >= logits.gather(1, token_ids.long().unsqueeze(1)), dim=-1, out=output)


def fill_logprob_token_ids(
    out_token_ids: torch.Tensor,
    out_token_ids_stride: int,
    out_valid_mask: torch.Tensor,
    out_valid_mask_stride: int,
    sampled_token_ids: torch.Tensor,
    topk_indices: torch.Tensor,
    topk_indices_stride: int,
    expanded_idx_mapping: torch.Tensor,
    num_per_req_token_ids: torch.Tensor,
    per_req_token_ids: torch.Tensor,
    per_req_token_ids_stride: int,
    NUM_TOPK: int,
    PADDED_COLS: int,
) -> None:
    """Choose the tokens to score, `[L, 1 + K]`: the sampled one, then the request's list or the `NUM_TOPK` best."""
    slots = expanded_idx_mapping.numpy()
    token_ids, valid = out_token_ids.numpy(), out_valid_mask.numpy()
    token_ids[:, 0] = sampled_token_ids.numpy()
    valid[:, 0] = True
    num_listed = num_per_req_token_ids.numpy()[slots]
    row, column = rows_and_offsets(num_listed)
    token_ids[row, column + 1] = per_req_token_ids.numpy()[slots[row], column]
    valid[row, column + 1] = True
    if NUM_TOPK:
        row = np.flatnonzero(num_listed == 0)
        token_ids[row, 1 : NUM_TOPK + 1] = topk_indices.numpy()[row, :NUM_TOPK]
        valid[row, 1 : NUM_TOPK + 1] = True


def prompt_logprobs_token_ids(
    prompt_logprobs_token_ids: torch.Tensor,
    query_start_loc: torch.Tensor,
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    all_token_ids: torch.Tensor,
    all_token_ids_stride: int,
    BLOCK_SIZE: int,
) -> None:
    """Write the token that follows each position of the step to `prompt_logprobs_token_ids` `[T]` int64."""
    slots = idx_mapping.numpy()
    starts = query_start_loc.numpy()[: len(slots) + 1]
    row, offset = rows_and_offsets(lengths_between(starts))
    token_ids = all_token_ids.numpy()
    # The token after the last one of a full context does not exist; its score is dropped by the caller.
    column = np.minimum(num_computed_tokens.numpy()[slots][row] + 1 + offset, token_ids.shape[1] - 1)
    prompt_logprobs_token_ids.numpy()[starts[0] : starts[-1]] = token_ids[slots[row], column]


def num_nans(
    logits: torch.Tensor, logits_stride: int, num_nans: torch.Tensor, vocab_size: int, BLOCK_SIZE: int
) -> None:
    """Count the NaNs of each row of `logits` `[L, V]` into `num_nans` `[L]`."""
    num_nans.copy_(logits.isnan().sum(dim=-1))
