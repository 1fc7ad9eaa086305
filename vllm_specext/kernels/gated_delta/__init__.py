"""The gated delta rule over draft trees, without a state for each node.

vLLM verifies a chain with a state for each of its rows, of which it keeps the accepted one. A state is megabytes, and a
tree has dozens of nodes. Here verification reads the one state before the root and writes none, and the states go on
along the accepted paths afterwards. Formulas: "Gated Delta Networks", arXiv 2412.06464; the mask of ancestors in the
place of the triangle is ours.
"""

from collections.abc import Sequence

from torch import Tensor

from vllm_specext.kernels.gated_delta import naive
from vllm_specext.kernels.gated_delta.layer import BlockEnds, GatedDeltaLayer, GatedDeltaRows, KeptRows, rows_before
from vllm_specext.kernels.pointers import HAS_TRITON

__all__ = ["BlockEnds", "GatedDeltaLayer", "GatedDeltaRows", "KeptRows", "advance", "attend", "rows_before"]


def attend(
    mixed: Tensor,
    a: Tensor,
    b: Tensor,
    layer: GatedDeltaLayer,
    rows: GatedDeltaRows,
    slots: Tensor,
    kept: KeptRows,
    place: int,
    out: Tensor,
) -> None:
    """Write what the first ``rows.num_rows`` rows of a step get of ``layer`` to ``out`` ``[T, Hv, V]``, and what they
    were to ``kept``, whose layer ``place`` this is.

    ``mixed`` ``[T, C]``: the rows' queries, keys and values before the convolution. ``a`` and ``b`` ``[T, Hv]``: vLLM's
    gates of decay and of beta. ``slots`` ``[R]`` int32: the requests' state slots, which are read only. Nodes of one
    request that do not see each other do not know of each other; a row that sees itself alone is a root.
    """
    if mixed.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.gated_delta import kernel  # a CPU has no use for Triton, nor time to import it

        kernel.attend(mixed, a, b, layer, rows, slots, kept, place, out)
    else:
        naive.attend(mixed, a, b, layer, rows, slots, kept, place, out)


def advance(
    layers: Sequence[GatedDeltaLayer],
    kept: KeptRows,
    slots: Sequence[Tensor],
    path: Tensor,
    counts: Tensor,
    ends: BlockEnds | None = None,
) -> None:
    """Have the states of all ``layers`` go on along the rows ``path`` ``[R, L]`` int64, of which the first ``counts``
    ``[R]`` count. ``kept`` is what ``attend`` was given for each, and ``slots``, for each layer ``[R]`` int32, too.
    The layers are alike in their shapes, strides and data types. ``ends``: where states stay on the way."""
    if path.is_cuda and HAS_TRITON:
        from vllm_specext.kernels.gated_delta import path_kernels

        path_kernels.advance(layers, kept, slots, path, counts, ends)
    else:
        naive.advance(layers, kept, slots, path, counts, ends)
