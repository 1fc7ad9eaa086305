"""A paged cache for a drafter whose text is not the target's.

Its tokens are others and its sequences have other lengths, so that neither the scheduler's pages nor its block tables
fit. Pages, tables and attention metadata are vLLM's own code on a configuration of the drafter's; who gets a page is
decided here, on the host. The memory is taken while models are loaded, so that vLLM's profile counts it, and becomes
the cache once vLLM has chosen its layout.
"""

from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
import torch
from torch import Tensor
from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention
from vllm.platforms import current_platform
from vllm.v1.worker.gpu.attn_utils import (
    build_attn_metadata,
    build_slot_mappings_by_layer,
    get_kv_cache_spec,
    init_attn_backend,
    init_kv_cache,
)
from vllm.v1.worker.gpu.block_table import BlockTables

from vllm_specext.engine.drafting.cache_groups import check_pages, keep_whole_texts
from vllm_specext.engine.drafting.node_passes import CacheGroup
from vllm_specext.engine.standalone.moved import get_kv_cache_config_from_groups, get_kv_cache_groups
from vllm_specext.engine.standalone.page_pool import PagePool
from vllm_specext.errors import ConfigurationError

SHARE = 0.05
"""Most of the device's memory that the cache takes: 4 GiB of 80, more than 300 000 tokens of a drafter of half a
billion parameters. Where requests need more, those that wait lose theirs and are read again."""


@dataclass(frozen=True)
class TextRows:
    """A pass that reads on in the texts of ``R`` requests: ``T`` rows, one request after the other."""

    starts: Tensor
    """First row of each request, and one row after the last, ``[R + 1]`` int32."""
    starts_np: np.ndarray
    """The same on the host."""
    positions: Tensor
    """Positions in the drafter's text, ``[T]``."""
    seq_lens: Tensor
    """Tokens of the drafter's text after the pass, ``[R]`` int32."""
    longest: int
    """At least the largest of ``seq_lens``."""
    writes: Tensor
    """Request slots, ``[R]``; -1 for a request whose keys and values are kept nowhere."""


class StandaloneCache:
    def __init__(self, config: VllmConfig, device: torch.device) -> None:
        """``config`` is the drafter's own, with its layers and no others."""
        self.config, self.device = config, device
        keep_whole_texts(get_layers_from_vllm_config(config, Attention).values())
        specs = get_kv_cache_spec(config)
        self._groups = get_kv_cache_groups(config, specs)
        kinds = max(len(self._groups), len({spec.page_size_bytes for spec in specs.values()}))
        if kinds != 1:
            raise ConfigurationError(
                f"speculative-config key 'model' is {config.model_config.model!r}, whose layers need {kinds} kinds of "
                "cache; drafters with one kind are allowed."
            )
        self.max_len = config.model_config.max_model_len
        self._max_num_reqs = config.scheduler_config.max_num_seqs
        self.page_size: int = self._groups[0].kv_cache_spec.block_size
        self.page_bytes = sum(spec.page_size_bytes for spec in specs.values())
        pages_of_one = ceil(self.max_len / self.page_size)
        share = int(SHARE * current_platform.get_device_total_memory())
        pages = 1 + max(pages_of_one, min(self._max_num_reqs * pages_of_one, share // self.page_bytes))
        self._reserved: Tensor | None = torch.empty(pages * self.page_bytes, dtype=torch.int8, device=device)
        self._bytes = pages * self.page_bytes

    def initialize(self, layout: str | None, memory: AbstractContextManager) -> None:
        """Give the layers their pages in vLLM's ``layout``, allocated in ``memory``; what was there is lost."""
        self._reserved = None
        self.config.cache_config.kv_cache_layout = layout
        self.kv_cache_config = get_kv_cache_config_from_groups(self.config, self._groups, self._bytes)
        self.attn_groups, _, kernel_sizes = init_attn_backend(self.kv_cache_config, self.config, self.device)
        init_kv_cache(
            self.config.compilation_config.static_forward_context,
            self.kv_cache_config,
            self.device,
            kernel_sizes,
            self.config,
            memory,
            attn_groups=[group for groups in self.attn_groups for group in groups],
        )
        self.tables = BlockTables(
            block_sizes=[self.page_size],
            max_num_reqs=self._max_num_reqs,
            max_num_batched_tokens=self.config.scheduler_config.max_num_batched_tokens,
            max_num_blocks_per_group=[ceil(self.max_len / self.page_size)],
            device=self.device,
        )
        check_pages(self.attn_groups, "the drafter's own text")
        self.pool = PagePool(self.kv_cache_config.num_blocks, self.page_size)

    @property
    def layer_names(self) -> list[str]:
        """The drafter's attention layers."""
        return self._groups[0].layer_names

    @property
    def group(self) -> CacheGroup:
        """The layers with the pages of the requests of ``begin``."""
        return CacheGroup(self.layer_names, self.page_size, self.tables.input_block_tables[0])

    def take(self, request_slot: int, tokens: int, waiting: Collection[int]) -> bool:
        """Make room for ``tokens`` of the request in ``request_slot``, as ``PagePool.take`` does; false where there is
        none."""
        had = self.pool.count(request_slot)
        new = self.pool.take(request_slot, tokens, waiting)
        if new:
            self.tables.append_block_ids(request_slot, (new,), overwrite=not had)
        return new is not None

    def holds(self, request_slot: int) -> bool:
        """Whether the request in ``request_slot`` still has its pages."""
        return self.pool.count(request_slot) > 0

    def release(self, request_slot: int) -> None:
        """Give the pages of the request in ``request_slot`` back."""
        self.pool.release(request_slot)

    def begin(self, request_slots: Tensor) -> None:
        """The passes to come are over the requests in ``request_slots`` ``[R]``."""
        self.tables.apply_staged_writes()
        self.tables.gather_block_tables(request_slots, len(request_slots))

    def block_table(self, requests: int) -> Tensor:
        """``[requests, blocks]`` of the first requests of ``begin``, always in the same place."""
        return self.tables.input_block_tables[0][:requests]

    def attention(self, rows: TextRows) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """Attention metadata and slot mappings of a pass, by layer."""
        requests, count = len(rows.seq_lens), len(rows.positions)
        mappings = self.tables.compute_slot_mappings(rows.writes, rows.starts, rows.positions, count)
        lengths = np.diff(rows.starts_np)
        metadata = build_attn_metadata(
            attn_groups=self.attn_groups,
            num_reqs=requests,
            num_tokens=count,
            query_start_loc_gpu=rows.starts,
            query_start_loc_cpu=torch.from_numpy(rows.starts_np),
            max_query_len=int(lengths.max()),
            seq_lens=rows.seq_lens,
            max_seq_len=rows.longest,
            block_tables=[self.block_table(requests)],
            slot_mappings=mappings,
            kv_cache_config=self.kv_cache_config,
            seq_lens_cpu_upper_bound=torch.full((requests,), rows.longest, dtype=torch.int32),
            positions=rows.positions,
            is_prefilling=torch.zeros(requests, dtype=torch.bool),
        )
        return metadata, build_slot_mappings_by_layer(mappings, self.kv_cache_config)
