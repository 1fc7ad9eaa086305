"""The gated delta rule over draft trees, without a state for each node.

vLLM verifies a chain with a state for each of its rows, of which it keeps the accepted one. A state is megabytes, and a
tree has dozens of nodes. Here verification reads the one state before the root and writes none, and the states go on
along the accepted paths afterwards. Formulas: "Gated Delta Networks", arXiv 2412.06464; the mask of ancestors in the
place of the triangle is ours.
"""

from torch import Tensor

from vllm_specext.kernels.gated_delta import naive
from vllm_specext.kernels.gated_delta.layer import GatedDeltaLayer, GatedDeltaRows, rows_before

__all__ = ["GatedDeltaLayer", "GatedDeltaRows", "advance", "attend", "rows_before"]


def attend(
    mixed: Tensor, gates: Tensor, layer: GatedDeltaLayer, rows: GatedDeltaRows, slots: Tensor, out: Tensor
) -> None:
    """Write what the first ``rows.num_rows`` rows of a step get of ``layer`` to ``out`` ``[T, Hv, V]``.

    ``mixed`` ``[T, C]``: the rows' queries, keys and values before the convolution. ``gates`` ``[T, 2 Hv]``: vLLM's
    ``a``, then ``b``. ``slots`` ``[R]``: the requests' state slots, which are read only. Nodes of one request that do
    not see each other do not know of each other. A row that sees itself alone is a root.
    """
    naive.attend(mixed, gates, layer, rows, slots, out)


def advance(mixed: Tensor, gates: Tensor, layer: GatedDeltaLayer, slots: Tensor, path: Tensor, counts: Tensor) -> None:
    """Have the states in ``slots`` ``[R]`` go on along the rows ``path`` ``[R, L]`` int64, of which the first
    ``counts`` ``[R]`` count. ``mixed`` ``[T, C]`` and ``gates`` ``[T, 2 Hv]`` are what ``attend`` was given."""
    naive.follow(mixed, gates, layer, slots, path, counts)
