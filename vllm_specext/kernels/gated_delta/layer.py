"""What the gated delta rule (arXiv 2412.06464) knows of a layer, as Qwen3-Next and Qwen3.5 have them.

A head's state is a matrix from keys to values. Shapes: ``C = 2 Hk K + Hv V`` channels of the convolution, ``Hk`` key
heads of width ``K``, ``Hv`` value heads of width ``V``, which are the heads that have states.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from vllm_specext.kernels.recurrent import RecurrentLayer


@dataclass(frozen=True, kw_only=True)
class GatedDeltaLayer(RecurrentLayer):
    """Channels are those of queries, then keys, then values. ``decay`` ``[Hv]``: logarithms, vLLM's ``A_log``.
    ``states`` ``[S, Hv, K, V]``. Gates: vLLM's ``a``, then ``b``."""

    key_heads: int

    @property
    def key_width(self) -> int:
        """Channels of all keys, and of all queries, ``Hk K``."""
        return self.key_heads * self.states.shape[2]

    def split(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries and keys ``[..., Hk, K]`` and values ``[..., Hv, V]`` of channels ``[..., C]``."""
        query, key, value = rows.split((self.key_width, self.key_width, rows.shape[-1] - 2 * self.key_width), dim=-1)
        shape = (self.key_heads, self.states.shape[2])
        return query.unflatten(-1, shape), key.unflatten(-1, shape), value.unflatten(-1, self.states.shape[1::2])
