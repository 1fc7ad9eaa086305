"""The target's keys and values as MoA reads them: those of all layers, token by token."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vllm_specext.engine.verification.compaction import caches_of
from vllm_specext.kernels.kv_gather import gather
from vllm_specext.kernels.pointers import Caches


class TargetCache:
    """The pages of the target's attention ``layers``, which all cache alike."""

    def __init__(self, layers: Sequence[Any], dtype: torch.dtype) -> None:
        """``dtype``: that of the drafter."""
        self._layers, self._dtype = layers, dtype
        # Made at the first use: layers get their caches after this.
        self._caches: Caches | None = None

    def gather(self, kv_slots: Tensor) -> Tensor:
        """Keys and values of ``kv_slots`` ``[T]``, ``[T, layers, heads, 2, head size]``."""
        if self._caches is None:
            self._caches = caches_of(self._layers)
        return gather(self._caches, kv_slots.long()).to(self._dtype)

    def nothing(self, rows: int, device: torch.device) -> Tensor:
        """Zeros in place of so many ``rows``, where there are no caches."""
        layer = self._layers[0]
        size = (rows, len(self._layers), layer.num_kv_heads, 2, layer.head_size)
        return torch.zeros(size, dtype=self._dtype, device=device)
