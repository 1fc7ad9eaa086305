"""A drafter's own attention layers, and the pages of vLLM's KV cache that its passes over tree nodes use."""

from collections.abc import Collection, Iterable
from typing import Any

from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention

from vllm_specext.engine.drafting.node_passes import CacheGroup
from vllm_specext.engine.verification.attention import wrap_draft_layers
from vllm_specext.errors import ConfigurationError


def wrap_own_layers(
    vllm_config: VllmConfig, target_names: Collection[str], levels: int, also: Collection[str] = ()
) -> None:
    """Wrap all attention layers but the target's, and those of the target that are named in ``also``, for trees of at
    most so many ``levels``."""
    layers = get_layers_from_vllm_config(vllm_config, Attention)
    wrap_draft_layers((layers[name] for name in layers if name not in target_names or name in also), levels)


def drafters_groups(speculator: Any, names: Collection[str]) -> list[CacheGroup]:
    """The cache groups of vLLM's ``speculator`` that hold its layers ``names``, once it has caches. Raises
    ``ConfigurationError`` where trees cannot be drafted on their pages."""
    check_pages(speculator.attn_groups, "draft trees")
    return cache_groups(speculator.kv_cache_config, speculator.block_tables, names)


def cache_groups(kv_cache_config: Any, block_tables: Any, names: Collection[str]) -> list[CacheGroup]:
    """The cache groups that hold any of the layers ``names``, with those layers alone."""
    found = []
    for number, group in enumerate(kv_cache_config.kv_cache_groups):
        layers = [name for name in group.layer_names if name in names]
        if layers:
            found.append(CacheGroup(layers, group.kv_cache_spec.block_size, block_tables.input_block_tables[number]))
    return found


def check_pages(attn_groups: Iterable[Iterable[Any]], what: str) -> None:
    """Refuse backends that cut vLLM's pages into smaller ones, which our passes do not know. ``what`` would be drafted
    on them."""
    for group in (group for groups in attn_groups for group in groups):
        if group.kernel_block_size is not None:
            raise ConfigurationError(
                f"{what} cannot be drafted on pages of {group.kv_cache_spec.block_size} tokens with the attention "
                f"backend {group.backend.get_name()}; set --block-size to {group.kernel_block_size}."
            )
