"""What the state space rule of Mamba-2 (arXiv 2405.21060) knows of a layer.

A head's state is a matrix of its values ``P`` by the state's width ``K``. Shapes: ``C = H P + 2 G K`` channels of the
convolution, ``H`` heads of width ``P``, in ``G`` groups of heads that have their input and output vectors in common.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vllm_specext.kernels.recurrent import RecurrentLayer


@dataclass(frozen=True, kw_only=True)
class StateSpaceLayer(RecurrentLayer):
    """Channels are those of values (the paper's ``x``), then input vectors (``B``), then output vectors (``C``).
    ``decay`` ``[H]``: negative rates, vLLM's ``A``. ``states`` ``[S, H, P, K]``. The one gate is the paper's step
    ``dt``."""

    skip: Tensor
    """How much of a head's values goes past its state, ``[H]``: vLLM's ``D``."""
    groups: int
    by_chance: bool = False
    """Whether states, which are float16 then, are rounded up or down by chance, as vLLM rounds them if told so."""

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Values ``[..., H, P]``, and input and output vectors ``[..., G, K]``, of channels ``[..., C]``."""
        width, shape = self.states.shape[1] * self.states.shape[2], (self.groups, self.states.shape[3])
        vectors = self.groups * self.states.shape[3]
        values, inward, outward = rows.split((width, vectors, vectors), dim=-1)
        return (
            values.unflatten(-1, self.states.shape[1:3]),
            inward.unflatten(-1, shape),
            outward.unflatten(-1, shape),
        )
