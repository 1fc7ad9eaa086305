"""Tree attention in vLLM's attention layers.

The instances are wrapped, not the backends: a layer's ``impl.forward`` runs tree attention for the rows that this
step's metadata names, and the backend's own kernel for all others. Writing keys and values stays vLLM's. The metadata
decides alone, so that eager passes, compiled models and graph capture work alike: the target's layers find the rows
attached to vLLM's metadata, and any layer may get ``TreeRows`` in the place of the metadata. A drafter whose layers
cache as the target's do shares vLLM's metadata with them, and must not see what is attached: it reads the step as a
chain. The target's layers leave the prefixes to FlashAttention 3 where they have it (``prefix_attention.py``).

vLLM stores a float8 cache as bytes that are to be multiplied by the layer's ``_k_scale`` and ``_v_scale``, one number
or one for each head; FlashAttention and Triton also get their query in float8, to be multiplied by ``_q_scale``. What
they take from it, tree attention takes as well.
"""

from collections.abc import Collection, Iterable
from typing import Any

from torch import Tensor
from vllm.platforms import current_platform

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.verification.other_rows import for_others
from vllm_specext.engine.verification.verifying_layers import have_verify, of_target
from vllm_specext.errors import ConfigurationError
from vllm_specext.kernels.tree_attention import LayerArguments, Scales, TreeRows, tree_attention
from vllm_specext.refusals import FLOAT8_CACHES, is_quantised

_ROWS = "vllm_specext_tree_rows"
_WRAPPED = "vllm_specext_wrapped"
WITH_BLOCK_TABLE = ("FLASH_ATTN", "TRITON_ATTN", "FLEX_ATTENTION", "CPU_ATTN")
"""Backends whose metadata name a request's pages as tree attention reads them."""


@replaces(
    "vllm.v1.attention.backend.AttentionMetadata.vllm_specext_tree_rows",
    name="rows of trees",
    why="the step's metadata is all that reaches an attention layer",
    how="added to the metadata of a step that verifies trees: its rows and their ancestors",
    upstream="vllm#42121 removed the tree attention backend; asked for in vllm#18327, #37396, #40809",
    until="vLLM verifies trees whose shape differs by request",
    kind="added",
)
def attach(metadata: Any, rows: TreeRows) -> None:
    """Have the target's layers with this metadata run tree attention on ``rows``, the first of the step."""
    setattr(metadata, _ROWS, rows)


def rows_of(metadata: Any) -> TreeRows | None:
    """The rows that were attached to ``metadata``, ``None`` where there are none."""
    rows: TreeRows | None = getattr(metadata, _ROWS, None)
    return rows


def wrap_target_layers(layers: Collection[Any], levels: int) -> None:
    """Wrap the target's layers, whose metadata may carry rows of draft trees before other rows.

    Raises ``ConfigurationError`` for a layer that tree attention cannot stand in for.
    """
    for layer in layers:
        backend = layer.attn_backend.get_name()
        if backend not in WITH_BLOCK_TABLE:
            raise ConfigurationError(
                f"draft trees cannot be verified with the attention backend {backend} of layer {layer.layer_name!r}; "
                "choose FLASH_ATTN or TRITON_ATTN with --attention-backend, or set 'tree_top_k' to 1."
            )
    wrap_draft_layers(layers, levels)
    for layer in layers:
        have_verify(layer, _arguments(layer, levels)["sliding_window"])


@replaces(
    "vllm.v1.attention.backend.AttentionImpl.vllm_specext_wrapped",
    name="layers that are wrapped",
    why="a layer may be named twice, by the target and by a drafter that uses it, and is wrapped once",
    how="added to the instances that are wrapped",
    upstream="vllm#42121 removed the tree attention backend; asked for in vllm#18327, #37396, #40809",
    until="vLLM verifies trees whose shape differs by request",
    kind="added",
)
def wrap_draft_layers(layers: Iterable[Any], levels: int) -> None:
    """Wrap a drafter's layers, which get ``TreeRows`` for metadata when a level of a tree is drafted."""
    for layer in layers:
        if not hasattr(layer.impl, _WRAPPED):
            _wrap(layer, levels)
            setattr(layer.impl, _WRAPPED, True)


def pages(kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys and values ``[pages, Hkv, page size, D]`` as views of a layer's cache ``[pages, Hkv, page size, 2 D]``."""
    if not current_platform.is_cpu():
        keys, values = kv_cache.chunk(2, dim=-1)
        return keys, values
    # Whatever its shape says, a page on a CPU holds for each head the transposed keys, then the values.
    count, heads, page_size, width = kv_cache.shape
    halves = kv_cache.view(count, heads, 2, page_size * width // 2)
    keys = halves[:, :, 0].unflatten(-1, (width // 2, page_size)).transpose(2, 3)
    return keys, halves[:, :, 1].unflatten(-1, (page_size, width // 2))


@replaces(
    "vllm.v1.attention.backend.AttentionImpl.forward",
    name="attention layers",
    why="no backend takes a mask of ancestors, and a step may hold rows of trees and others",
    how=(
        "wrapped on the instances whose layers verify or draft trees: rows that the step's metadata names run tree "
        "attention, all others the backend's own kernel"
    ),
    upstream="vllm#42121 removed the tree attention backend; asked for in vllm#18327, #37396, #40809",
    until="vLLM verifies trees whose shape differs by request",
    signature="self layer query key value kv_cache attn_metadata output output_scale output_block_scale",
)
@replaces(
    "vllm.v1.attention.backend.AttentionImpl.fused_output_quant_supported",
    name="results in float8",
    why="a compiler pass may ask attention for a result in float8, which tree attention does not write",
    how="replaced on the instances whose layers verify or draft trees: no such result is supported",
    upstream="none: no backend of vLLM's runs tree attention",
    until="vLLM verifies trees whose shape differs by request",
    signature="self quant_key",
)
def _wrap(layer: Any, levels: int) -> None:
    impl = layer.impl
    stock = impl.forward
    arguments = _arguments(layer, levels)
    quantised = layer.kv_cache_dtype in FLOAT8_CACHES
    # A result in float8 for the next layer, which a compiler pass may ask for, is not what tree attention writes.
    impl.fused_output_quant_supported = lambda quant_key: False

    def forward(
        layer: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        kv_cache: Tensor,
        attn_metadata: Any,
        output: Tensor,
        **fused: Any,
    ) -> Tensor:
        rows = attn_metadata if isinstance(attn_metadata, TreeRows) else None
        target = of_target(impl)
        if rows is None and target is not None:
            rows = rows_of(attn_metadata)
        if rows is None:
            return stock(layer, query, key, value, kv_cache, attn_metadata, output=output, **fused)
        if attn_metadata is not rows and attn_metadata.num_actual_tokens > rows.num_rows:
            stock(layer, query, key, value, kv_cache, for_others(attn_metadata, rows), output=output, **fused)
        keys, values = pages(kv_cache)
        if target is not None and target.over_prefixes is not None:
            target.over_prefixes.and_nodes(query, keys, values, rows, output)
            return output
        if quantised:
            float8 = current_platform.fp8_dtype()
            keys, values = keys.view(float8), values.view(float8)
        scales = _scales(layer, query) if quantised else Scales()
        # The backend may keep another tensor of them from its first pass on.
        tree_attention(query, keys, values, rows, output, **arguments, **scales, sinks=getattr(impl, "sinks", None))
        return output

    impl.forward = forward


def _scales(layer: Any, query: Tensor) -> Scales:
    """The scales as they are now, because loading a checkpoint may replace them."""
    q_scale = layer._q_scale if query.dtype.itemsize == 1 else None
    return {"q_scale": q_scale, "k_scale": layer._k_scale, "v_scale": layer._v_scale}


def _arguments(layer: Any, levels: int) -> LayerArguments:
    """What tree attention needs to know about a layer. Raises ``ConfigurationError`` for what it cannot do."""
    impl, name, dtype = layer.impl, layer.layer_name, layer.kv_cache_dtype
    for feature, present in (
        ("ALiBi", getattr(impl, "alibi_slopes", None) is not None),
        # Its backend has the name of the one that it divides the work for.
        (f"keys and values of type {dtype}", is_quantised(dtype) and dtype not in FLOAT8_CACHES),
        ("attention in chunks", getattr(layer, "attention_chunk_size", None) is not None),
        ("attention in chunks", getattr(impl, "chunk_lookback", -1) >= 0),
    ):
        if present:
            raise ConfigurationError(
                f"draft trees cannot be verified with {feature}, which layer {name!r} has; set 'tree_top_k' to 1."
            )
    window = getattr(impl, "sliding_window", None)
    if isinstance(window, tuple):  # FlashAttention counts the positions before the token itself
        window = window[0] + 1
    window = max(window or 0, 0)
    if 0 < window <= levels:
        raise ConfigurationError(
            f"speculative-config keys 'tree_depth' and 'prediction_tokens' allow drafts of {levels} levels, but at "
            f"most {window - 1} fit the sliding window of layer {name!r}."
        )
    return {"scale": impl.scale, "soft_cap": float(impl.logits_soft_cap or 0), "sliding_window": window}
