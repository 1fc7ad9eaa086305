"""Attention layers of vLLM's KV cache whose pages a drafter's passes over tree nodes use."""

from collections.abc import Collection, Iterable
from typing import Any

from vllm_specext.engine.drafting.node_passes import CacheGroup
from vllm_specext.errors import ConfigurationError


def cache_groups(kv_cache_config: Any, block_tables: Any, names: Collection[str]) -> list[CacheGroup]:
    """The cache groups that hold any of the layers ``names``, with those layers alone."""
    found = []
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        layers = [name for name in group.layer_names if name in names]
        if layers:
            found.append(CacheGroup(layers, group.kv_cache_spec.block_size, block_tables.input_block_tables[number]))
    return found


def check_pages(attn_groups: Iterable[Iterable[Any]]) -> None:
    """Refuse backends that cut vLLM's pages into smaller ones, which tree attention does not know."""
    for group in (group for groups in attn_groups for group in groups):
        if group.kernel_block_size is not None:
            raise ConfigurationError(
                f"draft trees cannot be drafted on pages of {group.kv_cache_spec.block_size} tokens with the "
                f"attention backend {group.backend.get_name()}; set --block-size to {group.kernel_block_size}."
            )
