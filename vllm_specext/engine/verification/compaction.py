"""Moving the keys and values of accepted paths to where a chain would have them, in the target's layers."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor
from vllm.model_executor.layers.attention import MLAAttention

from vllm_specext.engine.verification.attention import pages
from vllm_specext.engine.verification.latent_layers import latent_pages
from vllm_specext.engine.verification.layout import AcceptedPaths
from vllm_specext.kernels.kv_compaction import compact
from vllm_specext.kernels.pointers import Caches


class Compaction:
    """KV compaction over the target's attention ``layers``, given by cache group."""

    def __init__(self, layers: Sequence[Sequence[Any]]) -> None:
        self.layers = layers
        # Made at the first use: layers get their caches after this.
        self._caches: list[Caches] = []

    def __call__(self, paths: AcceptedPaths, slot_mappings: Tensor) -> None:
        """``slot_mappings`` ``[groups, tokens]``: the KV slot of each row of the step."""
        if paths.in_order:
            return
        if not self._caches:
            self._caches = [caches_of(layers) for layers in self.layers]
        for caches, kv_slots in zip(self._caches, slot_mappings, strict=True):
            if caches:
                compact(caches, kv_slots[paths.source], kv_slots[paths.destination])


def caches_of(layers: Sequence[Any]) -> Caches:
    """The pages of attention ``layers`` that have their caches."""
    return Caches(view for layer in layers for view in views(layer))


def views(layer: Any) -> tuple[Tensor, ...]:
    """The pages of a ``layer``, ``[pages, Hkv, page size, D]``: of keys and of values, or of both in one."""
    return (latent_pages(layer.kv_cache),) if isinstance(layer, MLAAttention) else pages(layer.kv_cache)
