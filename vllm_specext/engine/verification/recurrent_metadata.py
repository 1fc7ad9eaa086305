"""What vLLM's metadata says of layers with a recurrent state, where draft trees are verified without states of nodes.

vLLM's own way to verify drafts has a state for each row. Its metadata is built here as if there were no drafts: for the
rows of trees there is none of it, and the others are a step of their own.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from vllm.v1.attention.backend import CommonAttentionMetadata
from vllm.v1.attention.backends.gdn_attn import (
    GDNAttentionBackend,
    GDNAttentionMetadata,
    GDNAttentionMetadataBuilder,
)

from vllm_specext.kernels.gated_delta import GatedDeltaRows


@dataclass
class OneStateMetadata(GDNAttentionMetadata):
    """Metadata of a step whose first requests verify drafts."""

    drafted: int = 0
    """How many requests do."""
    slots: Tensor | None = None
    """The state slots of all requests, ``[R]`` int32."""
    others: GDNAttentionMetadata | None = None
    """vLLM's metadata of the rows after them, as a step of their own; ``None`` where there are none."""
    trees: GatedDeltaRows | None = None
    """The rows of these requests."""


class OneStateBackend(GDNAttentionBackend):
    """vLLM's, with this builder."""

    @staticmethod
    def get_builder_cls() -> type["OneStateBuilder"]:
        return OneStateBuilder


class OneStateBuilder(GDNAttentionMetadataBuilder):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.num_spec, self.use_spec_decode = 0, False
        # A captured graph reads them.
        requests = self.vllm_config.scheduler_config.max_num_seqs
        self._slots = torch.zeros(requests, dtype=torch.int32, device=self.device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        num_accepted_tokens: Tensor | None = None,
        num_decode_draft_tokens_cpu: Tensor | None = None,
        fast_build: bool = False,
    ) -> GDNAttentionMetadata:
        step = common_attn_metadata
        # vLLM sorts requests that verify drafts before all others.
        drafted = 0 if num_decode_draft_tokens_cpu is None else int((num_decode_draft_tokens_cpu > 0).sum())
        if drafted == 0:
            return super().build(common_prefix_len, step)
        rows = int(step.query_start_loc_cpu[drafted])
        total = int(step.query_start_loc_cpu[-1])
        slots = self._slots[: step.num_reqs]
        slots.copy_(step.block_table_tensor[: step.num_reqs, 0])
        return OneStateMetadata(
            num_prefills=0,
            num_prefill_tokens=0,
            num_decodes=0,
            num_decode_tokens=0,
            num_spec_decodes=0,
            num_spec_decode_tokens=0,
            num_actual_tokens=total,
            drafted=drafted,
            slots=slots,
            others=super().build(common_prefix_len, _after(step, drafted, rows)) if total > rows else None,
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> GDNAttentionMetadata:
        drafted = common_attn_metadata.query_start_loc_cpu.diff() - 1
        return self.build(0, common_attn_metadata, num_decode_draft_tokens_cpu=drafted)


def _after(step: CommonAttentionMetadata, requests: int, rows: int) -> CommonAttentionMetadata:
    """``step`` without its first ``requests``, which have so many ``rows``."""

    def rest(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[requests:]

    starts = step.query_start_loc_cpu[requests:] - rows
    return CommonAttentionMetadata(
        query_start_loc=step.query_start_loc[requests:] - rows,
        query_start_loc_cpu=starts,
        seq_lens=step.seq_lens[requests:],
        num_reqs=step.num_reqs - requests,
        num_actual_tokens=int(starts[-1]),
        max_query_len=int(starts.diff().max()),
        max_seq_len=step.max_seq_len,
        block_table_tensor=step.block_table_tensor[requests:],
        slot_mapping=step.slot_mapping[rows:],
        is_prefilling=rest(step.is_prefilling),
        seq_lens_cpu_upper_bound=rest(step.seq_lens_cpu_upper_bound),
    )
