"""What a layer's backend is told of a step whose first rows are trees and whose others read prompts.

The backend attends for all rows, and tree attention then writes over those of trees. So these requests are told to be
as short as their rows: otherwise the backend would read their whole context once more, for nothing.
"""

from dataclasses import replace
from typing import Any

from vllm_specext.kernels.tree_attention import TreeRows

BY_REQUEST = frozenset({"FlashAttentionMetadata", "TritonAttentionMetadata"})
"""Metadata of backends that read each request's length on the device, at every layer. Others have worked out by it how
the step is divided. FlashAttention 3 has, too; it finds parts of a shorter request empty."""


def for_others(metadata: Any, rows: TreeRows) -> Any:
    """``metadata`` of the step in which ``rows`` are the first, for its other rows; the same for layers that share
    these."""
    if type(metadata).__name__ not in BY_REQUEST:
        return metadata
    shared = rows.shared
    if "others" not in shared:
        lens = metadata.seq_lens.clone()
        counts = rows.query_start_loc.diff()
        lens[: len(counts)] = counts
        shared["others"] = replace(metadata, seq_lens=lens)
    return shared["others"]
