"""Bodies for the inputs of drafters that run one token at a time.

Counterparts: ``spec_decode/target_dependent_ar/speculator.py`` (EAGLE-like drafters, which read the target's hidden
states) and ``spec_decode/standalone_ar/speculator.py`` (a language model of its own).
Shapes: `R` requests, `M` most requests, `T` tokens of the step, `N` drafted tokens, `H` hidden size.
"""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

import numpy as np
import torch

from vllm_specext.cpu_runner.ragged import lengths_between, rows_and_offsets


def prepare_prefill_inputs(
    last_token_indices: torch.Tensor,
    draft_current_step: torch.Tensor,
    draft_input_ids: torch.Tensor,
    draft_positions: torch.Tensor,
    draft_query_start_loc: torch.Tensor,
    draft_seq_lens: torch.Tensor,
    target_input_ids: torch.Tensor,
    target_positions: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_num_reqs: int,
    BLOCK_SIZE: int,
) -> None:
    """Shift the accepted rows of the target's `input_ids` `[T]` by one and append the token sampled after them.

    The rejected rows at the end of each request stay in the batch as padding and keep whatever the buffers hold.
    """
    slots = idx_mapping.numpy()
    num_reqs = len(slots)
    starts = query_start_loc.numpy()[: num_reqs + 1]
    query_start = starts[:-1]
    accepted = lengths_between(starts) - num_rejected.numpy()[:num_reqs]
    row, offset = rows_and_offsets(accepted)
    token = query_start[row] + offset
    ids = draft_input_ids.numpy()
    inner = token[offset > 0]
    ids[inner - 1] = target_input_ids.numpy()[inner]
    draft_positions.numpy()[token] = target_positions.numpy()[token]

    last = query_start + accepted - 1
    ids[last] = np.where(
        num_sampled.numpy()[:num_reqs] > 0,
        last_sampled.view(-1).numpy()[slots],
        next_prefill_tokens.view(-1).numpy()[slots],
    )
    indices = last_token_indices.numpy()
    indices[:num_reqs] = last
    indices[num_reqs:max_num_reqs] = 0
    draft_starts = draft_query_start_loc.numpy()
    draft_starts[:num_reqs] = query_start
    draft_starts[num_reqs : max_num_reqs + 1] = starts[-1]
    draft_lengths = draft_seq_lens.numpy()
    draft_lengths[:num_reqs] = seq_lens.numpy()[:num_reqs]
    draft_lengths[num_reqs:max_num_reqs] = 0
    draft_current_step.numpy()[...] = 0


def prepare_decode_inputs(
    draft_tokens: torch.Tensor,
    draft_tokens_stride: int,
    target_seq_lens: torch.Tensor,
    num_rejected: torch.Tensor,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    sample_src_positions: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    max_model_len: int,
    max_num_reqs: int,
    BLOCK_SIZE: int,
    ADVANCE_DRAFT_POSITIONS: bool,
) -> None:
    """Turn the first drafted token (`draft_tokens` `[R, ...]`) into the input of a batch with one token per request."""
    num_reqs = draft_tokens.shape[0]
    starts = query_start_loc.numpy()
    starts[: num_reqs + 1] = np.arange(num_reqs + 1)
    starts[num_reqs + 1 : max_num_reqs + 1] = num_reqs
    first = draft_tokens if draft_tokens.dim() == 1 else draft_tokens[:, 0]
    input_ids.numpy()[:num_reqs] = first.numpy()
    sample_src_positions.numpy()[:num_reqs] += 1
    length = target_seq_lens.numpy()[:num_reqs] - num_rejected.numpy()[:num_reqs]
    if ADVANCE_DRAFT_POSITIONS:
        position = positions.numpy()[:num_reqs]
        np.minimum(position + 1, max_model_len - 1, out=position)
        length = np.minimum(length + 1, max_model_len)
    lengths = seq_lens.numpy()
    lengths[:num_reqs] = length
    lengths[num_reqs:max_num_reqs] = 0


def update_draft_inputs(
    output_draft_tokens: torch.Tensor,
    output_draft_tokens_stride: int,
    next_input_hidden_states: torch.Tensor,
    next_input_hidden_states_stride: int,
    input_ids: torch.Tensor,
    positions: torch.Tensor,
    sample_src_positions: torch.Tensor,
    seq_lens: torch.Tensor,
    draft_tokens: torch.Tensor,
    current_draft_step: torch.Tensor,
    hidden_states: torch.Tensor,
    hidden_states_stride: int,
    hidden_size: int,
    max_model_len: int,
    num_speculative_steps: int,
    BLOCK_SIZE: int,
    ADVANCE_DRAFT_POSITIONS: bool,
) -> None:
    """Store the drafted tokens `[R]` of this step in `output_draft_tokens` `[M, N]` and feed them to the next one."""
    num_reqs = draft_tokens.shape[0]
    step = int(current_draft_step)
    drafted = draft_tokens.numpy()
    output_draft_tokens.numpy()[:num_reqs, step] = drafted
    if step >= num_speculative_steps - 1:
        return
    sample_src_positions.numpy()[:num_reqs] += 1
    input_ids.numpy()[:num_reqs] = drafted
    next_input_hidden_states[:num_reqs, :hidden_size].copy_(hidden_states[:num_reqs, :hidden_size])
    if ADVANCE_DRAFT_POSITIONS:
        position = positions.numpy()[:num_reqs]
        np.minimum(position + 1, max_model_len - 1, out=position)
        length = seq_lens.numpy()[:num_reqs]
        np.minimum(length + 1, max_model_len, out=length)


def prepare_standalone_prefill_inputs(
    target_input_ids: torch.Tensor,
    target_positions: torch.Tensor,
    last_sampled: torch.Tensor,
    idx_mapping: torch.Tensor,
    out_input_ids: torch.Tensor,
    out_positions: torch.Tensor,
    last_token_indices: torch.Tensor,
    out_query_start_loc: torch.Tensor,
    out_seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    seq_lens: torch.Tensor,
    num_rejected: torch.Tensor,
    max_num_reqs: int,
    max_model_len: int,
    BLOCK_SIZE: int,
) -> None:
    """Append to each request's accepted rows the token sampled after them: one row more than the target's query.

    Rows after that token (rejected drafts) hold token 0 and are overwritten in a later round.
    """
    slots = idx_mapping.numpy()
    num_reqs = len(slots)
    starts = query_start_loc.numpy()[: num_reqs + 1]
    query_start = starts[:-1]
    num_valid = lengths_between(starts) - num_rejected.numpy()[:num_reqs]
    out_start = query_start + np.arange(num_reqs, dtype=query_start.dtype)
    row, offset = rows_and_offsets(lengths_between(starts) + 1)
    target = out_start[row] + offset

    source_ids = target_input_ids.numpy()
    source = np.minimum(query_start[row] + offset, len(source_ids) - 1)
    ids = out_input_ids.numpy()
    ids[target] = np.where(offset < num_valid[row], source_ids[source], 0)
    last = out_start + num_valid
    ids[last] = last_sampled.view(-1).numpy()[slots]
    out_positions.numpy()[target] = np.minimum(target_positions.numpy()[query_start][row] + offset, max_model_len - 1)

    indices = last_token_indices.numpy()
    indices[:num_reqs] = last
    indices[num_reqs:max_num_reqs] = 0
    out_starts = out_query_start_loc.numpy()
    out_starts[:num_reqs] = out_start
    out_starts[num_reqs : max_num_reqs + 1] = starts[-1] + num_reqs
    lengths = out_seq_lens.numpy()
    lengths[:num_reqs] = np.minimum(seq_lens.numpy()[:num_reqs] + 1, max_model_len)
    lengths[num_reqs:max_num_reqs] = 0
