"""What vLLM's metadata says of layers with a recurrent state, where draft trees are verified without states of nodes.

vLLM's own way to verify drafts has a state for each row. Its metadata is built here as if there were no drafts: for the
rows of trees there is none of it, and the others are a step of their own.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from vllm.config import VllmConfig
from vllm.v1.attention.backend import CommonAttentionMetadata

from vllm_specext.errors import ConfigurationError
from vllm_specext.kernels.recurrent import TreeRows


@dataclass
class OneStateMetadata:
    """Metadata of a step whose first requests verify drafts."""

    drafted: int
    """How many requests do."""
    table: Tensor
    """Their block table ``[V, blocks]`` int32, of state slots."""
    block: int | None
    """Where prefixes are cached: the tokens in a block. Else each request has one slot."""
    slots_and_ends: Tensor
    """The state slots that they have in this step; and where prefixes are cached, those of the blocks in which their
    next tokens lie, which get the states where these blocks end: ``[2, V]`` int32. `find_slots` fills it in."""
    rows_to_ends: Tensor | None = None
    """How many rows there are up to there, ``[V]`` int32; ``None`` where no prefixes are cached."""
    others: Any = None
    """vLLM's metadata of the rows after them, as a step of their own; ``None`` where there are none."""
    trees: TreeRows | None = None
    """The rows of these requests."""

    def __post_init__(self) -> None:
        self.slots, self.ends = self.slots_and_ends


class OneStateBuilder:
    """Comes before the class of vLLM's builder of a kind of layers, which verifies no drafts."""

    kv_cache_spec: Any
    vllm_config: Any
    device: torch.device

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        block = self.kv_cache_spec.block_size
        self._block = block if caches_prefixes(self.vllm_config, block) else None
        # A captured graph reads the slots of states, and tables of addresses name both rows.
        requests = self.vllm_config.scheduler_config.max_num_seqs
        self._slots = torch.zeros(2, requests, dtype=torch.int32, device=self.device)

    def build(
        self,
        common_prefix_len: int,
        common_attn_metadata: CommonAttentionMetadata,
        num_accepted_tokens: Tensor | None = None,
        num_decode_draft_tokens_cpu: Tensor | None = None,
        fast_build: bool = False,
    ) -> Any:
        stock: Any = super()
        step = common_attn_metadata
        # vLLM sorts requests that verify drafts before all others.
        drafted = 0 if num_decode_draft_tokens_cpu is None else int((num_decode_draft_tokens_cpu > 0).sum())
        if drafted == 0:
            return stock.build(common_prefix_len, step)
        rows = int(step.query_start_loc_cpu[drafted])
        others = int(step.query_start_loc_cpu[-1]) > rows
        return OneStateMetadata(
            drafted=drafted,
            table=step.block_table_tensor[:drafted],
            block=self._block,
            slots_and_ends=self._slots[:, :drafted],
            others=stock.build(common_prefix_len, _after(step, drafted, rows)) if others else None,
        )

    def with_table(
        self, metadata: OneStateMetadata, table: Tensor, of_others: Callable[[Any, Tensor], Any]
    ) -> OneStateMetadata:
        """The ``metadata`` of another cache group with this one's block ``table`` ``[R, blocks]``; that of the other
        rows comes from ``of_others``, which gets theirs and their part of the table."""
        drafted, others = metadata.drafted, metadata.others
        return replace(
            metadata,
            table=table[:drafted],
            slots_and_ends=self._slots[:, :drafted],
            others=None if others is None else of_others(others, table[drafted:]),
        )

    def build_for_cudagraph_capture(self, common_attn_metadata: CommonAttentionMetadata) -> Any:
        drafted = common_attn_metadata.query_start_loc_cpu.diff() - 1
        return self.build(0, common_attn_metadata, num_decode_draft_tokens_cpu=drafted)


def find_slots(steps: Iterable[OneStateMetadata], starts: Tensor, seq_lens: Tensor) -> None:
    """Fill in where states lie in ``steps``, the metadata that one step has for each cache group. The rows of its
    requests begin at ``starts`` ``[V + 1]`` int32, and end with ``seq_lens`` ``[V]`` int32 tokens."""
    columns = rows = None
    for step in steps:
        if step.block is None:
            step.slots.copy_(step.table[:, 0])
            continue
        if columns is None:  # blocks of all groups are as long
            computed = seq_lens - starts.diff()
            # What is captured may have fewer tokens than rows.
            columns = torch.stack((seq_lens - 1, computed)).clamp_(min=0).long() // step.block
            rows = step.block - computed % step.block
        torch.gather(step.table.T, 0, columns, out=step.slots_and_ends)
        step.rows_to_ends = rows


def caches_prefixes(vllm_config: VllmConfig, block: int) -> bool:
    """Whether states stay where blocks of ``block`` tokens end. Raises ``ConfigurationError`` where a path could pass
    several such ends, or states would be kept in a way that we do not know."""
    mode = vllm_config.cache_config.mamba_cache_mode
    if mode not in ("none", "align"):
        raise ConfigurationError(f"--mamba-cache-mode is {mode!r}; drafts for this target allow none or align.")
    drafted = vllm_config.num_speculative_tokens
    if mode == "align" and drafted >= block:
        raise ConfigurationError(
            f"speculative-config key 'num_speculative_tokens' is {drafted}, but with prefix caching fewer must be "
            f"drafted than a block of the recurrent layers has tokens, {block}; --no-enable-prefix-caching allows more."
        )
    return mode == "align"


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
