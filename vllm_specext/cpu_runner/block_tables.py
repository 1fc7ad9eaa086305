"""Replacements for the two ``BlockTables`` methods whose kernels read tables of raw pointers.

Both are methods rather than kernel bodies, because a launch shows only addresses, not the tensors that they point to.
Context parallelism (``cp_size > 1``) does not exist on CPU and is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from vllm.v1.attention.backends.utils import PAD_SLOT_ID

from vllm_specext.cpu_runner.ragged import lengths_between
from vllm_specext.engine.changes.replacements import replaces


@replaces(
    "vllm.v1.worker.gpu.block_table.BlockTables.gather_block_tables",
    name="block tables on a CPU",
    why="a launch shows only addresses in a table of raw pointers, not the tensors that they point to",
    how="replaced by a body in torch, only where V2 runs on a CPU",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    signature="self idx_mapping num_reqs_padded out out_ptrs [num_computed_tokens]",
)
def gather_block_tables(
    self: Any,
    idx_mapping: torch.Tensor,
    num_reqs_padded: int,
    out: tuple[torch.Tensor, ...] | None = None,
    out_ptrs: torch.Tensor | None = None,
    num_computed_tokens: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:
    """Copy the block-table rows of the batch (`idx_mapping` `[R]`) to the front of each group's input table.

    Rows from `R` to `num_reqs_padded` are zeroed; those after them are of no batch, and vLLM 0.33 alone zeroes them.
    Entries after a request's last block are unspecified. Where `num_computed_tokens` `[M]` is given, as by 0.33, pages
    that a sliding window has left before the request's first row are zeroed: another request may own them by now.
    """
    tables = tuple(self.input_block_tables) if out is None else out
    slots = idx_mapping.numpy()
    num_reqs = len(slots)
    reaches = getattr(self, "_sliding_window_reach", None)
    for group, (source, target) in enumerate(zip(self.block_tables, tables, strict=True)):
        rows = target.numpy()
        rows[:num_reqs] = source.gpu.numpy()[slots]
        rows[num_reqs:num_reqs_padded] = 0
        if num_computed_tokens is not None and reaches is not None and reaches[group]:
            left = np.maximum(num_computed_tokens.numpy()[slots] - reaches[group], 0) // self.block_sizes[group]
            rows[:num_reqs][np.arange(rows.shape[1]) < left[:, None]] = 0
    return tuple(table[:num_reqs_padded] for table in tables)


@replaces(
    "vllm.v1.worker.gpu.block_table.BlockTables.compute_slot_mappings",
    name="slot mappings on a CPU",
    why="a launch shows only addresses in a table of raw pointers, not the tensors that they point to",
    how="replaced by a body in torch, only where V2 runs on a CPU",
    upstream="vllm#49583, vllm#55847",
    until="V2 runs on CPU without Triton",
    signature="self idx_mapping query_start_loc positions num_tokens_padded out",
)
def compute_slot_mappings(
    self: Any,
    idx_mapping: torch.Tensor,
    query_start_loc: torch.Tensor,
    positions: torch.Tensor,
    num_tokens_padded: int,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Translate `positions` into KV slots, `[G, T]`; padding and requests with slot -1 get ``PAD_SLOT_ID``."""
    if self.cp_size != 1:
        raise NotImplementedError(
            f"model runner V2 on CPU without Triton: cp_size is {self.cp_size}, only 1 is allowed"
        )
    slot_mappings = self.slot_mappings if out is None else out
    mappings = slot_mappings.numpy()
    slots = idx_mapping.numpy()
    starts = query_start_loc.numpy()[: len(slots) + 1]
    num_tokens = starts[-1]
    owner = np.repeat(slots, lengths_between(starts))
    position = positions.numpy()[:num_tokens]
    owned = None if len(slots) == 0 or slots.min() >= 0 else owner >= 0

    for group, table in enumerate(self.block_tables):
        mapping = mappings[group]
        mapping[num_tokens:] = PAD_SLOT_ID
        if not self._slot_mapping_enabled[group]:
            mapping[:num_tokens] = PAD_SLOT_ID
            continue
        block_size = self.block_sizes[group]
        block, offset = np.divmod(position, block_size)
        slot_ids = table.gpu.numpy()[owner, block].astype(np.int64) * block_size + offset
        mapping[:num_tokens] = slot_ids if owned is None else np.where(owned, slot_ids, PAD_SLOT_ID)
    return slot_mappings[:, :num_tokens_padded]
