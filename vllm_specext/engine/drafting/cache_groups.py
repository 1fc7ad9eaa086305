"""A drafter's own attention layers, and the pages of vLLM's KV cache that its passes over tree nodes use."""

from collections.abc import Collection, Iterable
from typing import Any

from vllm.config import VllmConfig, get_layers_from_vllm_config
from vllm.model_executor.layers.attention import Attention, MLAAttention

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.drafting.node_passes import CacheGroup
from vllm_specext.engine.verification.attention import WITH_BLOCK_TABLE, wrap_draft_layers
from vllm_specext.engine.verification.latent_layers import (
    read_prompts_with_own_scale,
    reads_chains_as_prompts,
    wrap_latent_layers,
)
from vllm_specext.errors import ConfigurationError


def wrap_own_layers(
    vllm_config: VllmConfig, target_names: Collection[str], levels: int, also: Collection[str] = ()
) -> None:
    """Wrap all attention layers but the target's, and those of the target that are named in ``also``, for trees of at
    most so many ``levels``."""
    layers = get_layers_from_vllm_config(vllm_config, Attention)
    wrap_draft_layers((layers[name] for name in layers if name not in target_names or name in also), levels)
    if all(layers[name].sliding_window is None for name in layers.keys() & target_names):
        keep_whole_texts(layers[name] for name in layers.keys() - target_names)


def wrap_own_latent_layers(vllm_config: VllmConfig, target_names: Collection[str]) -> None:
    """Wrap those layers with latent attention (MLA) that are not the target's, whose metadata they share: all for
    prompts, and for drafts that are chains the backends that the target's are wrapped with."""
    layers = get_layers_from_vllm_config(vllm_config, MLAAttention)
    own = [layer for name, layer in layers.items() if name not in target_names]
    for layer in own:
        read_prompts_with_own_scale(layer.impl)
    if vllm_config.speculative_config.tree is None:
        own = [layer for layer in own if reads_chains_as_prompts(layer)]
    wrap_latent_layers(own, of_target=False)


@replaces(
    "vllm.model_executor.layers.attention.attention.Attention.sliding_window",
    name="pages of layers with windows",
    why=(
        "vLLM gives layers with a window pages of their own, in groups that all have as many layers as the smallest: "
        "one such layer of a drafter, and each layer of the target has a block table and metadata of its own"
    ),
    how=(
        "set to None for a drafter's layers where none of the target's has a window, or where the drafter has its own "
        "text: they keep whole texts on the same pages as the others, and see a window of them"
    ),
    upstream="none; the FIXME in vLLM's _get_kv_cache_groups_uniform_page_size",
    until="vLLM's groups may have different numbers of layers",
    kind="set",
)
def keep_whole_texts(layers: Iterable[Any]) -> None:
    """Have ``layers`` with windows keep the keys and values of whole texts, so that they share pages with others."""
    for layer in layers:
        if layer.attn_backend.get_name() in WITH_BLOCK_TABLE:  # others may want one window for all that share pages
            layer.sliding_window = None


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
