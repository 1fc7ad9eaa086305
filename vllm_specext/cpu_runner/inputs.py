"""Bodies for ``v1/worker/gpu/input_batch.py``: token ids, positions and counters of one step.

Shapes: `R` requests in the batch, `M` request slots, `T` tokens, `L` logits rows, `N` drafted tokens per request.
`idx_mapping` `[R]` maps a batch row to its slot. All tensors are int32 unless said otherwise.
"""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

import numpy as np
import torch

from vllm_specext.cpu_runner.ragged import lengths_between, rows_and_offsets


def prepare_prefill_inputs(
    input_ids: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    next_prefill_tokens_stride: int,
    num_lookahead: int,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    all_token_ids: torch.Tensor,
    all_token_ids_stride: int,
    prefill_lens: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    BLOCK_SIZE: int,
    LOOKAHEAD_BLOCK: int,
) -> None:
    """Copy the scheduled part of each prompt to `input_ids` `[T]`, the tokens after it to `next_prefill_tokens`."""
    slots = idx_mapping.numpy()
    computed = num_computed_tokens.numpy()[slots]
    prefill_len = prefill_lens.numpy()[slots]
    prefilling = np.flatnonzero(computed < prefill_len)
    if len(prefilling) == 0:
        return
    slots, computed, prefill_len = slots[prefilling], computed[prefilling], prefill_len[prefilling]
    starts = query_start_loc.numpy()
    query_start = starts[prefilling]
    query_len = starts[prefilling + 1] - query_start
    token_ids = all_token_ids.numpy()

    row, offset = rows_and_offsets(query_len)
    input_ids.numpy()[query_start[row] + offset] = token_ids[slots[row], computed[row] + offset]

    position = (computed + query_len) + np.arange(num_lookahead)[:, None]
    known = token_ids[slots, np.minimum(position, prefill_len - 1)]
    next_prefill_tokens.numpy()[:num_lookahead, slots] = np.where(position < prefill_len, known, 0)


def prepare_pos_seq_lens(
    pos: torch.Tensor,
    seq_lens: torch.Tensor,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    max_num_reqs: int,
    BLOCK_SIZE: int,
) -> None:
    """Write the positions `[T]` int64 of all tokens and the sequence lengths `[M]`, zero after the batch."""
    slots = idx_mapping.numpy()
    num_reqs = len(slots)
    starts = query_start_loc.numpy()[: num_reqs + 1]
    query_len = lengths_between(starts)
    computed = num_computed_tokens.numpy()[slots]
    lengths = seq_lens.numpy()
    np.add(computed, query_len, out=lengths[:num_reqs])
    lengths[num_reqs:max_num_reqs] = 0
    num_tokens = starts[-1]
    pos.numpy()[:num_tokens] = np.arange(num_tokens) + np.repeat(computed - starts[:-1], query_len)


def combine_sampled_and_draft_tokens(
    input_ids: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    prefill_len: torch.Tensor,
    draft_tokens: torch.Tensor,
    draft_tokens_stride: int,
    cu_num_logits: torch.Tensor,
    logits_indices: torch.Tensor,
    BLOCK_SIZE: int,
    NUM_NEW_SAMPLED_TOKENS: int = 1,
) -> None:
    """Write each decoding request's last token and its drafts to `input_ids`, and `logits_indices` `[L]` int64."""
    slots = idx_mapping.numpy()
    num_reqs = len(slots)
    query_end = query_start_loc.numpy()[1 : num_reqs + 1]
    cu_logits = cu_num_logits.numpy()[: num_reqs + 1]
    num_logits = lengths_between(cu_logits)
    logits_start = query_end - num_logits
    logits_indices.numpy()[cu_logits[0] : cu_logits[-1]] = np.arange(cu_logits[0], cu_logits[-1]) + np.repeat(
        logits_start - cu_logits[:-1], num_logits
    )

    ids = input_ids.numpy()
    seq_len = seq_lens.numpy()[:num_reqs]
    prompt_end = prefill_len.numpy()[slots]
    decoding = seq_len > prompt_end
    if NUM_NEW_SAMPLED_TOKENS > 0:
        rows = np.flatnonzero(decoding & (seq_len - num_logits >= prompt_end))
        ids[logits_start[rows]] = last_sampled_tokens.view(-1).numpy()[slots[rows]]
    num_drafts = np.where(decoding, num_logits - NUM_NEW_SAMPLED_TOKENS, 0)
    if num_drafts.any():
        row, offset = rows_and_offsets(num_drafts)
        ids[(query_end - num_drafts)[row] + offset] = draft_tokens.numpy()[slots[row], offset]


def get_num_sampled_and_rejected(
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_num_logits: torch.Tensor,
    idx_mapping: torch.Tensor,
    prefill_len: torch.Tensor,
) -> None:
    """Clear `num_sampled` `[R]` of requests still in their prompt; `num_rejected` `[R]` = logits rows not kept."""
    slots = idx_mapping.numpy()
    num_reqs = len(slots)
    sampled = num_sampled.numpy()
    decided = seq_lens.numpy()[:num_reqs] >= prefill_len.numpy()[slots]
    sampled[:num_reqs] *= decided
    num_rejected.numpy()[:num_reqs] = (
        lengths_between(cu_num_logits.numpy()[: num_reqs + 1]) - sampled[:num_reqs]
    ) * decided


def post_update(
    idx_mapping: torch.Tensor,
    num_computed_tokens: torch.Tensor,
    last_sampled_tokens: torch.Tensor,
    output_bin_counts: torch.Tensor | None,
    output_bin_counts_stride: int,
    sampled_tokens: torch.Tensor,
    sampled_tokens_stride: int,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor | None,
    all_token_ids: torch.Tensor,
    all_token_ids_stride: int,
    total_len: torch.Tensor,
    draft_tokens: torch.Tensor | None = None,
    draft_tokens_out: torch.Tensor | None = None,
    num_draft_tokens: int = 0,
    num_warps: int = 1,
) -> None:
    """Append `sampled_tokens` `[R, N + 1]` int64 to the request states; rows whose slot is negative are skipped.

    vLLM 0.33 gives the drafts that another rank drafted too, `draft_tokens` `[R, N]`, which go to the request's row of
    `draft_tokens_out` `[M, N]`.
    """
    slots = idx_mapping.numpy()
    num_reqs = len(slots)
    kept = np.flatnonzero(slots >= 0)
    slots = slots[kept]
    if draft_tokens is not None:
        assert draft_tokens_out is not None
        draft_tokens_out.numpy()[slots] = draft_tokens.numpy()[kept]
    sampled = num_sampled.numpy()[kept]
    tokens = sampled_tokens.numpy()
    lengths = total_len.numpy()

    row, offset = rows_and_offsets(sampled)
    token, slot = tokens[kept[row], offset], slots[row]
    all_token_ids.numpy()[slot, lengths[slot] + offset] = token
    if output_bin_counts is not None:
        np.add.at(output_bin_counts.numpy(), (slot, token), 1)

    emitting = sampled > 0
    last_sampled_tokens.view(-1).numpy()[slots[emitting]] = tokens[kept[emitting], sampled[emitting] - 1]
    lengths[slots] += sampled
    delta = -num_rejected.numpy()[kept]
    if query_start_loc is not None:
        delta = delta + lengths_between(query_start_loc.numpy()[: num_reqs + 1])[kept]
    num_computed_tokens.numpy()[slots] += delta


def post_update_num_computed_tokens(
    idx_mapping: torch.Tensor, num_computed_tokens: torch.Tensor, query_start_loc: torch.Tensor
) -> None:
    """Advance `num_computed_tokens` `[M]` by each request's query length."""
    slots = idx_mapping.numpy()
    num_computed_tokens.numpy()[slots] += lengths_between(query_start_loc.numpy()[: len(slots) + 1])


def expand_idx_mapping(
    idx_mapping: torch.Tensor,
    expanded_idx_mapping: torch.Tensor,
    expanded_local_pos: torch.Tensor,
    cu_num_logits: torch.Tensor,
    BLOCK_SIZE: int,
) -> None:
    """Write each logits row's slot (`expanded_idx_mapping` `[L]`) and place in its request (`expanded_local_pos`)."""
    slots = idx_mapping.numpy()
    row, offset = rows_and_offsets(lengths_between(cu_num_logits.numpy()[: len(slots) + 1]))
    expanded_idx_mapping.numpy()[: len(row)] = slots[row]
    expanded_local_pos.numpy()[: len(row)] = offset
