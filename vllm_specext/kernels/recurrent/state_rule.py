"""Draft trees in layers with a recurrent state, in torch or by the Triton kernels of the layers' rule."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor

from vllm_specext.kernels.pointers import HAS_TRITON
from vllm_specext.kernels.recurrent import naive
from vllm_specext.kernels.recurrent.layer import RecurrentLayer
from vllm_specext.kernels.recurrent.rows import BlockEnds, KeptRows, TreeRows


@dataclass(frozen=True)
class StateRule:
    """How states go on from row to row, and what rows get of them."""

    in_torch: naive.Rule
    package: str
    """Where its Triton kernels are: in modules ``kernel`` and ``path_kernels``."""

    def attend(
        self,
        mixed: Tensor,
        gates: Sequence[Tensor],
        layer: RecurrentLayer,
        rows: TreeRows,
        slots: Tensor,
        kept: KeptRows,
        place: int,
        out: Tensor,
    ) -> None:
        """Write what the first ``rows.num_rows`` rows of a step get of ``layer`` to ``out`` ``[T, H, V]``, and what
        they were to ``kept``, whose layer ``place`` this is.

        ``mixed`` ``[T, C]``: the rows before the convolution. ``gates``, each ``[T, H]``: those that the layer says.
        ``slots`` ``[R]`` int32: the requests' state slots, which are read only. Nodes of one request that do not see
        each other do not know of each other; a row that sees itself alone is a root.
        """
        arguments = mixed, gates, layer, rows, slots, kept, place, out
        if mixed.is_cuda and HAS_TRITON:
            self._kernels("kernel").attend(*arguments)
        else:
            naive.attend(self.in_torch, *arguments)

    def advance(
        self,
        layers: Sequence[RecurrentLayer],
        kept: KeptRows,
        slots: Sequence[Tensor],
        path: Tensor,
        counts: Tensor,
        ends: BlockEnds | None = None,
    ) -> None:
        """Have the states of all ``layers`` go on along the rows ``path`` ``[R, L]`` int64, of which the first
        ``counts`` ``[R]`` count. ``kept`` is what ``attend`` was given for each, and ``slots``, for each layer ``[R]``
        int32, too. The layers are alike in their shapes, strides and data types. ``ends``: where states stay on the
        way."""
        if path.is_cuda and HAS_TRITON:
            self._kernels("path_kernels").advance(layers, kept, slots, path, counts, ends)
        else:
            naive.advance(self.in_torch, layers, kept, slots, path, counts, ends)

    def _kernels(self, name: str) -> Any:
        """A CPU has no use for Triton, nor time to import it."""
        return import_module(f"{self.package}.{name}")
