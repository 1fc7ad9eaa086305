"""Attention of draft-tree nodes over a paged key-value cache.

A request's query rows see its whole prefix and, of the tree that lies in the cache right after the prefix, the nodes
that their bits name: themselves and their ancestors. Two uses: verification, where the query rows are the whole tree,
and drafting, where they are the last level of what has been drafted so far.
"""

from collections.abc import Hashable
from typing import TypedDict

from torch import Tensor

from vllm_specext.kernels.pointers import HAS_TRITON
from vllm_specext.kernels.tree_attention import naive, native, tiles
from vllm_specext.kernels.tree_attention.naive import TreeRows

__all__ = ["LayerArguments", "Scales", "TreeRows", "attend_to_nodes", "tree_attention", "variant"]


class LayerArguments(TypedDict):
    """The keyword arguments of ``tree_attention`` that stay the same for a layer."""

    scale: float
    soft_cap: float
    sliding_window: int


class Scales(TypedDict, total=False):
    """The keyword arguments of ``tree_attention`` for keys and values in float8."""

    q_scale: Tensor | None
    k_scale: Tensor | None
    v_scale: Tensor | None


def tree_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: TreeRows,
    out: Tensor,
    *,
    scale: float,
    soft_cap: float = 0.0,
    sliding_window: int = 0,
    q_scale: Tensor | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    sinks: Tensor | None = None,
) -> None:
    """Write the attention of the first ``rows.num_rows`` rows of ``query`` to ``out``, both ``[T, Hq, D]``.

    ``key_cache`` and ``value_cache`` ``[pages, Hkv, page size, D]``, of any strides. In a latent cache the values are
    the first ``L`` numbers of the keys: ``value_cache`` is then that part of ``key_cache``, and ``out`` ``[T, Hq, L]``.
    On a GPU ``D - L`` has to be a power of two, and at least 16. ``soft_cap`` bounds the scores by
    ``tanh`` (0: not at all). ``sliding_window``: a node sees that many positions back, itself included (0: all); the
    tree has to be less deep than that. Every row sees itself, by its bits. Slots that no row of a request sees may hold
    anything, NaN included, and so may the block table after the last page that holds a slot that one sees.

    Keys and values may be float8, and the query with them, which are then multiplied by ``q_scale``, ``k_scale`` and
    ``v_scale``: float32 on the device, one number or ``[Hkv]``.

    ``sinks`` ``[Hq]``, of any floating-point type: for each head the score of one more slot, which every row sees and
    which has a value of zeros, as in vLLM's backends. Neither ``scale`` nor ``soft_cap`` changes it.
    """
    layer: LayerArguments = {"scale": scale, "soft_cap": soft_cap, "sliding_window": sliding_window}
    unscaled = q_scale is k_scale is v_scale is None
    scales: Scales = {"q_scale": q_scale, "k_scale": k_scale, "v_scale": v_scale}
    if query.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.tree_attention import launching  # a CPU has no use for Triton, nor time to import it

        launching.tree_attention(query, key_cache, value_cache, rows, out, **layer, **scales, sinks=sinks)
    elif unscaled and native.takes(query, key_cache, value_cache, rows, out, sinks):
        native.tree_attention(query, key_cache, value_cache, rows, out, **layer, sinks=sinks)
    else:
        naive.tree_attention(query, key_cache, value_cache, rows.plan, out, **layer, **scales, sinks=sinks)


def attend_to_nodes(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    rows: TreeRows,
    out: Tensor,
    lse: Tensor,
    *,
    scale: float,
    soft_cap: float = 0.0,
) -> None:
    """Complete in place what ``out`` ``[T, Hq, D]`` has of the prefixes on a GPU: attention of the first
    ``rows.num_rows`` rows to their requests' prefixes, without a mask. ``lse`` ``[Hq, rows.num_rows]`` float32 are the
    logarithms of the sums of exponentials of those scores, infinite where a prefix is empty. The other arguments are
    those of ``tree_attention``, which knows float8, sliding windows and sinks too."""
    from vllm_specext.kernels.tree_attention import after_prefix  # a CPU has no use for Triton, nor time to import it

    after_prefix.attend_to_nodes(query, key_cache, value_cache, rows, out, lse, scale=scale, soft_cap=soft_cap)


def variant(query: Tensor, key_cache: Tensor, value_cache: Tensor, rows: TreeRows) -> Hashable:
    """Name what Triton compiles for ``rows``: calls with the same layer and equal variants share a binary."""
    return tiles.variant(query, key_cache, value_cache, rows, tiles.Processors.of(query.device))
