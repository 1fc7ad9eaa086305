"""Body for the inputs of block drafters, which draft all positions in one pass.

Counterpart: ``spec_decode/dflash/speculator.py``, which DSpark's speculator shares.
Shapes: `R` requests, `M` most requests, `T` tokens of the step, `Q` rows of a block, `N` drafted tokens per request.
"""

# ruff: noqa: N803 - a launch passes these arguments by the names of the kernel.
from __future__ import annotations

from typing import Any

import numpy as np
import torch

from vllm_specext.cpu_runner.ragged import IntArray, lengths_between, rows_and_offsets


def prepare_block_inputs(
    out_input_ids: torch.Tensor,
    out_query_positions: torch.Tensor,
    out_query_start_loc: torch.Tensor,
    out_seq_lens: torch.Tensor,
    out_query_slot_mapping: torch.Tensor,
    out_context_positions: torch.Tensor,
    out_context_slot_mapping: torch.Tensor,
    out_sample_indices: torch.Tensor,
    out_sample_pos: torch.Tensor,
    out_sample_idx_mapping: torch.Tensor,
    out_temperature: torch.Tensor,
    out_seeds: torch.Tensor,
    target_positions: torch.Tensor,
    target_query_start_loc: torch.Tensor,
    idx_mapping: torch.Tensor,
    last_sampled: torch.Tensor,
    next_prefill_tokens: torch.Tensor,
    num_sampled: torch.Tensor,
    num_rejected: torch.Tensor,
    temperature: torch.Tensor,
    seeds: torch.Tensor,
    block_table: torch.Tensor,
    block_table_stride: int,
    parallel_drafting_token_id: int,
    block_size: int,
    num_query_per_req: int,
    num_speculative_steps: int,
    max_num_reqs: int,
    max_num_tokens: int,
    max_model_len: int,
    cp_rank: int,
    SAMPLE_FROM_ANCHOR: bool,
    PAD_SLOT_ID: int,
    CP_SIZE: int,
    CP_INTERLEAVE: int,
    BLOCK_SIZE: int,
    out_is_padding: torch.Tensor | None = None,
) -> None:
    """Positions and KV slots of the accepted rows, whose keys and values come from the target's states, and a block of
    `Q` rows for each request: the token sampled last, then mask tokens.

    `out_context_*` `[T]` are position 0 and ``PAD_SLOT_ID`` for rejected rows. `out_sample_*` `[R N]` name the rows
    that are drafted from. What follows the batch in the buffers is padding, which vLLM 0.33 also marks
    (`out_is_padding`) and gives token and position 0.
    """
    slots = idx_mapping.numpy()
    requests, width, drafted = len(slots), num_query_per_req, num_speculative_steps
    starts = target_query_start_loc.numpy()[: requests + 1]
    lengths = lengths_between(starts)
    accepted = lengths - num_rejected.numpy()[:requests]
    positions, tables = target_positions.numpy(), block_table.numpy()

    def kv_slots(row: IntArray, position: IntArray) -> Any:
        page = tables[row, np.minimum(position // block_size, block_table_stride - 1)].astype(np.int64)
        return np.where(page == 0, PAD_SLOT_ID, page * block_size + position % block_size)

    row, offset = rows_and_offsets(lengths)
    token, counts = starts[row] + offset, offset < accepted[row]
    position = np.where(counts, positions[token], 0)
    out_context_positions.numpy()[token] = position
    out_context_slot_mapping.numpy()[token] = np.where(counts, kv_slots(row, position), PAD_SLOT_ID)

    first = positions[starts[:-1] + accepted - 1] + 1
    place = np.arange(width)
    ids = np.full((requests, width), parallel_drafting_token_id)
    ids[:, 0] = np.where(
        num_sampled.numpy()[:requests] > 0,
        last_sampled.view(-1).numpy()[slots],
        next_prefill_tokens.view(-1).numpy()[slots],
    )
    block = first[:, None] + place
    rows = requests * width
    out_input_ids.numpy()[:rows] = ids.ravel()
    out_query_positions.numpy()[:rows] = np.minimum(block, max_model_len - 1).ravel()
    out_query_slot_mapping.numpy()[:rows] = kv_slots(np.repeat(np.arange(requests), width), block.ravel())
    out_query_slot_mapping.numpy()[rows:max_num_tokens] = PAD_SLOT_ID
    if out_is_padding is not None:
        out_is_padding.numpy()[:rows] = False
        for buffer, padding in ((out_input_ids, 0), (out_query_positions, 0), (out_is_padding, 1)):
            buffer.numpy()[rows:max_num_tokens] = padding

    skipped = 0 if SAMPLE_FROM_ANCHOR else 1
    sampled, end = requests * drafted, max_num_reqs * drafted
    index = np.arange(requests)[:, None] * width + place[skipped : skipped + drafted]
    for buffer, values, padding in (
        (out_sample_indices, index, 0),
        (out_sample_pos, block[:, skipped : skipped + drafted] + (1 - skipped), 0),
        (out_sample_idx_mapping, np.broadcast_to(slots[:, None], (requests, drafted)), -1),
    ):
        buffer.numpy()[:sampled] = values.ravel()
        buffer.numpy()[sampled:end] = padding

    out_starts, out_lengths = out_query_start_loc.numpy(), out_seq_lens.numpy()
    out_starts[:requests] = np.arange(requests) * width
    out_starts[requests : max_num_reqs + 1] = rows
    out_lengths[:requests] = np.minimum(first + width, max_model_len)
    out_lengths[requests:max_num_reqs] = 0
    out_temperature.numpy()[slots] = temperature.numpy()[slots]
    out_seeds.numpy()[slots] = seeds.numpy()[slots]
