"""What trees see of their prefixes, by FlashAttention 3.

All rows of a request see its whole prefix, so that a kernel without a mask can attend to that, which is most of a long
request, and ours to the nodes alone. FlashAttention 3 forms products while it takes the exponentials of others, which
Triton's compiler cannot be told to do.

How a launch is divided over the GPU follows from the lengths of the step and is worked out by a launch of its own, once
for all layers that have the same pages. Whether it is FlashAttention's and how many parts there may be follows from
shapes, so that it is the same in every replay of a CUDA graph.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.utils.torch_utils import canonicalize_singleton_dim_strides

from vllm_specext.kernels.tree_attention import TreeRows, attend_to_nodes
from vllm_specext.kernels.tree_attention.tiles import Processors
from vllm_specext.refusals import is_quantised

VERSION = 3
BLOCK_M = 128
"""Rows times heads that a program of FlashAttention 3 is taken to have."""
MOST_PARTS = 32
"""Of a request: as many as vLLM allows in graphs."""
BYTES_OF_PARTS = 128 << 20
"""Of a launch's results by part: each graph keeps room for those of one layer."""


@dataclass(frozen=True)
class PrefixAttention:
    """For layers of one kind."""

    scale: float
    soft_cap: float

    def __call__(self, query: Tensor, keys: Tensor, values: Tensor, rows: TreeRows, out: Tensor) -> Tensor:
        """Write what the first ``rows.num_rows`` rows of ``query`` ``[T, Hq, D]`` see of their prefixes to ``out``, and
        return the logarithms of the sums of exponentials of those scores, ``[Hq, rows.num_rows]`` float32: infinite
        where a prefix is empty. ``keys`` and ``values`` ``[pages, Hkv, page size, D]``."""
        count = rows.num_rows
        if count == 0:
            return query.new_empty(query.shape[1], 0, dtype=torch.float32)
        from vllm.v1.attention.backends.fa_utils import flash_attn_varlen_func  # there is none on a CPU

        parts, schedule, lengths = self._division(query, keys, rows)
        # As vLLM's backend has them; with one head, a stride may be anything.
        key, value = (canonicalize_singleton_dim_strides(cache.transpose(1, 2)) for cache in (keys, values))
        _, lse = flash_attn_varlen_func(
            q=query[:count],
            k=key,
            v=value,
            out=out[:count],
            cu_seqlens_q=rows.query_start_loc,
            max_seqlen_q=rows.max_query_len,
            seqused_k=lengths,
            max_seqlen_k=rows.max_seq_len,
            block_table=rows.block_table,
            softmax_scale=self.scale,
            softcap=self.soft_cap,
            causal=False,
            return_softmax_lse=True,
            scheduler_metadata=schedule,
            num_splits=parts,
            fa_version=VERSION,
        )
        return lse

    def and_nodes(self, query: Tensor, keys: Tensor, values: Tensor, rows: TreeRows, out: Tensor) -> None:
        """Write attention to prefixes and nodes together to ``out``; the arguments are the same."""
        given = query, keys, values, rows, out
        attend_to_nodes(*given, self(*given), scale=self.scale, soft_cap=self.soft_cap)

    def _division(self, query: Tensor, keys: Tensor, rows: TreeRows) -> tuple[int, Tensor, Tensor]:
        """The most parts of a prefix, how they are shared out, and the prefixes' lengths in the kernel's type."""
        (heads, size), (kv_heads, page_size) = query.shape[1:], keys.shape[1:3]
        # A graph has to work it out in each replay, whatever a pass before its capture has left here.
        captured = torch.cuda.is_current_stream_capturing()
        key = heads, kv_heads, size, page_size, self.soft_cap > 0, query.dtype, captured
        shared = rows.shared
        found: tuple[int, Tensor, Tensor] | None = shared.get(key)
        if found is not None:
            return found
        from vllm.v1.attention.backends.fa_utils import get_scheduler_metadata  # there is none on a CPU

        lengths = rows.prefix_lens.int()
        parts = most_parts(query, keys, rows, Processors.of(query.device).count)
        schedule = get_scheduler_metadata(
            batch_size=rows.block_table.shape[0],
            max_seqlen_q=rows.max_query_len,
            max_seqlen_k=rows.max_seq_len,
            num_heads_q=heads,
            num_heads_kv=kv_heads,
            headdim=size,
            cache_seqlens=lengths,
            qkv_dtype=query.dtype,
            cu_seqlens_q=rows.query_start_loc,
            page_size=page_size,
            causal=False,
            has_softcap=self.soft_cap > 0,
            num_splits=parts,
        )
        shared[key] = parts, schedule, lengths
        return parts, schedule, lengths


def most_parts(query: Tensor, keys: Tensor, rows: TreeRows, processors: int) -> int:
    """Into how many parts a prefix may be cut: as many as one long request needs to fill the GPU, and as there is room
    for."""
    heads, size = query.shape[1:]
    kv_heads = keys.shape[1]
    tiles = kv_heads * -(-rows.max_query_len * heads // kv_heads // BLOCK_M)
    of_one = max(1, rows.num_rows) * heads * size * torch.float32.itemsize
    return max(1, min(processors // tiles, MOST_PARTS, BYTES_OF_PARTS // of_one))


def prefix_attention(layer: Any, sliding_window: int) -> PrefixAttention | None:
    """What attends to the prefixes of trees in an attention ``layer``; ``None`` where tree attention does it all.

    In windows a node sees less of its prefix the deeper it is. Float8 and attention sinks are left to tree attention,
    and so is all that is not FlashAttention 3: version 2 is seldom faster than tree attention, and often much slower.
    """
    impl = layer.impl
    if getattr(impl, "vllm_flash_attn_version", None) != VERSION or impl.batch_invariant_enabled:
        return None
    if sliding_window or impl.sinks is not None or is_quantised(layer.kv_cache_dtype):
        return None
    return PrefixAttention(impl.scale, float(impl.logits_soft_cap or 0))
