"""Tree attention in layers with multi-head latent attention (MLA).

Such a layer keeps one vector for each token, which is the key of all heads, and its first numbers are the value. vLLM
multiplies the queries of the rows that decode by what makes keys of latent vectors, calls its backend for them, and
multiplies the result by what makes values. The backend's part is what trees need otherwise, so that it is replaced on
the instances, ``impl.forward_mqa``. Prompts are read by another path, which is left alone.

Which rows decode is said in the step's metadata (``latent_steps.py``). The target's layers find there the rows of
trees, and a drafter's layers the same rows as those of chains.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.verification.attention import attach, rows_of
from vllm_specext.errors import ConfigurationError
from vllm_specext.kernels.tree_attention import TreeRows, tree_attention
from vllm_specext.refusals import is_quantised

OF_UNEQUAL_ROWS = "FLASH_ATTN_MLA"
"""The backend whose kernel takes any numbers of rows, with lengths from the device."""
BACKENDS = (OF_UNEQUAL_ROWS, "TRITON_MLA", "CPU_MLA")
"""Those whose metadata and queries have been looked at."""
_CHAINS = "vllm_specext_chain_rows"


@replaces(
    "vllm.v1.attention.backend.AttentionMetadata.vllm_specext_chain_rows",
    name="rows of trees as those of chains",
    why="a drafter's layers read the rows that the target verifies, after the accepted ones were put in order",
    how="added to the metadata of a step that verifies trees, where the target's layers have a latent cache",
    upstream="none: vLLM's drafts are chains",
    until="vLLM verifies trees whose shape differs by request",
    kind="added",
)
def attach_to_latent(metadata: Any, rows: TreeRows, causal: Tensor) -> None:
    """Have the target's layers with this ``metadata`` run tree attention on ``rows``, and a drafter's as if each row
    saw those before it, by ``causal`` ``[rows of a request, words]``."""
    attach(metadata, rows)
    chains = causal[: rows.max_query_len].expand(len(rows.prefix_lens), -1, -1)
    setattr(metadata, _CHAINS, replace(rows, visible=chains))


def block_table_of(metadata: Any) -> Tensor:
    """Pages of the requests that decode, ``[R, blocks]``."""
    table: Tensor = metadata.decode.block_table
    return table


def latent_pages(kv_cache: Tensor) -> Tensor:
    """A layer's cache ``[pages, page size, D]`` as the keys of one head, ``[pages, 1, page size, D]``."""
    return kv_cache.unsqueeze(1)


def reads_chains_as_prompts(layer: Any) -> bool:
    """Whether the backend of a ``layer`` may leave chains to the path for prompts, and tree attention can stand in for
    it."""
    backend = layer.attn_backend.get_name()
    return backend in BACKENDS and backend != OF_UNEQUAL_ROWS and not is_quantised(layer.kv_cache_dtype)


def wrap_latent_layers(layers: Iterable[Any], of_target: bool) -> None:
    """Wrap the target's layers, or a drafter's. Raises ``ConfigurationError`` for one that tree attention cannot stand
    in for."""
    for layer in layers:
        if (backend := layer.attn_backend.get_name()) not in BACKENDS:
            raise ConfigurationError(
                f"draft trees cannot be verified with the attention backend {backend} of layer {layer.layer_name!r}; "
                f"choose one of {', '.join(BACKENDS)} with --attention-backend."
            )
        if is_quantised(layer.kv_cache_dtype):
            raise ConfigurationError(
                f"draft trees cannot be verified with latent vectors of type {layer.kv_cache_dtype}, which layer "
                f"{layer.layer_name!r} keeps; leave out --kv-cache-dtype."
            )
        _wrap(layer, of_target)


@replaces(
    "vllm.v1.attention.backend.MLAAttentionImpl.forward_mqa",
    name="layers with latent attention",
    why="no backend takes a mask of ancestors",
    how="wrapped on the instances whose layers verify or draft trees: rows that the metadata names run tree attention",
    upstream="none: vLLM's drafts are chains",
    until="vLLM verifies trees whose shape differs by request",
    signature="self q kv_c_and_k_pe_cache attn_metadata layer",
)
def _wrap(layer: Any, of_target: bool) -> None:
    impl = layer.impl
    stock = impl.forward_mqa

    def forward_mqa(
        q: Tensor | tuple[Tensor, Tensor], kv_c_and_k_pe_cache: Tensor, attn_metadata: Any, layer: Any
    ) -> tuple[Tensor, Tensor | None]:
        rows = rows_of(attn_metadata) if of_target else chains_of(attn_metadata)
        if rows is None:
            result: tuple[Tensor, Tensor | None] = stock(q, kv_c_and_k_pe_cache, attn_metadata, layer)
            return result
        query = torch.cat(q, dim=-1) if isinstance(q, tuple) else q
        return latent_attention(impl, query, kv_c_and_k_pe_cache, rows), None

    impl.forward_mqa = forward_mqa


@replaces(
    "vllm.v1.attention.backend.MLAAttentionImpl.forward_mha",
    name="prompts in a drafter's layers with latent attention",
    why=(
        "vLLM reads prompts with the scale of the first layer that shares the metadata, one of the target's, and a "
        "drafter whose rotary positions are stretched otherwise has another"
    ),
    how=(
        "wrapped on the instances of drafters: the scale of the metadata's backend is the layer's for the call; "
        "FlashInfer's is planned before, with one scale for all"
    ),
    upstream="none",
    until="vLLM reads prompts with each layer's own scale",
    signature="self q kv_c_normed k_pe kv_c_and_k_pe_cache attn_metadata k_scale output output_scale",
)
def read_prompts_with_own_scale(impl: Any) -> None:
    """Have a drafter's layer read prompts as it was trained."""
    stock = impl.forward_mha

    def forward_mha(
        q: Tensor,
        kv_c_normed: Tensor,
        k_pe: Tensor,
        kv_c_and_k_pe_cache: Tensor,
        attn_metadata: Any,
        k_scale: Tensor,
        output: Tensor,
        output_scale: Tensor | None = None,
    ) -> None:
        with _scaled(attn_metadata.prefill.prefill_backend, impl.scale):
            stock(q, kv_c_normed, k_pe, kv_c_and_k_pe_cache, attn_metadata, k_scale, output, output_scale)

    impl.forward_mha = forward_mha


@replaces(
    "vllm.v1.attention.backends.mla.prefill.base.MLAPrefillBackend.scale",
    name="scale of prompts in a drafter's layers with latent attention",
    why="the backend in the metadata has the scale of one of the target's layers",
    how="set to the layer's while a drafter's layer reads prompts",
    upstream="none",
    until="vLLM reads prompts with each layer's own scale",
    kind="set",
)
@contextmanager
def _scaled(backend: Any, scale: float) -> Iterator[None]:
    shared, backend.scale = backend.scale, scale
    try:
        yield
    finally:
        backend.scale = shared


def chains_of(metadata: Any) -> TreeRows | None:
    """What a drafter's layer sees of the step: the rows as chains, or those of its own pass."""
    chains: TreeRows | None = getattr(metadata, _CHAINS, None)
    return rows_of(metadata) if chains is None else chains


def latent_parts(impl: Any, kv_cache: Tensor) -> tuple[Tensor, Tensor]:
    """Keys ``[pages, 1, page size, D]`` and values, their first ``L`` numbers, of a layer's cache
    ``[pages, page size, D]``."""
    keys = latent_pages(kv_cache)
    return keys, keys[..., : impl.kv_lora_rank]


def latent_attention(impl: Any, query: Tensor, kv_cache: Tensor, rows: TreeRows) -> Tensor:
    """Tree attention of ``query`` ``[T, Hq, D]`` over a layer's cache, ``[T, Hq, L]``."""
    out = query.new_empty(*query.shape[:2], impl.kv_lora_rank)
    tree_attention(query, *latent_parts(impl, kv_cache), rows, out, scale=impl.scale)
    return out
