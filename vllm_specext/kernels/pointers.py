"""Where the caches of several layers lie, as a table from which one launch reaches them all.

The table is made once, when the caches are there, and holds addresses: it is right for as long as the caches stay where
they are. Rows are moved as words of bytes, so that the data type does not matter.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from math import gcd

import torch
from torch import Tensor

HAS_TRITON = find_spec("triton") is not None
"""Whether kernels can be launched where there is a GPU; elsewhere the specifications in torch run."""

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class PointerTable:
    """A head's row in a slot is ``words`` words that lie side by side."""

    entries: Tensor
    """``[caches, 7]`` int64: address; words from a page, a head and a slot to the next; heads, words, page size."""
    word: torch.dtype
    """The widest type of which all addresses and distances are multiples."""
    heads: int
    """Heads of the cache that has most."""
    words: int
    """Words of a row in the cache whose rows are widest."""
    alike: bool
    """Whether all caches have the same heads, width and data type."""


class Caches(tuple[Tensor, ...]):
    """Views ``[pages, Hkv, page size, D]`` of layers' keys and values that count their slots alike. Sizes and strides
    may differ between them."""

    def __new__(cls, views: Iterable[Tensor]) -> "Caches":
        return super().__new__(cls, views)

    @cached_property
    def table(self) -> PointerTable:
        for place, view in enumerate(self):
            if view.stride(3) != 1:
                raise ValueError(
                    f"cache {place} has its last axis in steps of {view.stride(3)}; kernels need it dense."
                )
        in_bytes = [
            (view.data_ptr(), *(step * view.element_size() for step in (*view.stride()[:3], view.shape[3])))
            for view in self
        ]
        # The greatest power of two, 8 at most, that divides everything.
        size = gcd(8, *(number for numbers in in_bytes for number in numbers))
        entries = [
            (address, page // size, head // size, slot // size, view.shape[1], row // size, view.shape[2])
            for view, (address, page, head, slot, row) in zip(self, in_bytes, strict=True)
        ]
        return PointerTable(
            entries=torch.tensor(entries, dtype=torch.int64, device=self[0].device),
            word=WORDS[size],
            heads=max(view.shape[1] for view in self),
            words=max(row // size for *_, row in in_bytes),
            alike=self.alike,
        )

    @cached_property
    def alike(self) -> bool:
        """Whether all have the same heads, width and data type."""
        return len({(view.shape[1], view.shape[3], view.dtype) for view in self}) == 1

    @cached_property
    def places(self) -> Tensor:
        """``[caches, 10]`` int64 for the bodies in C++, which take any strides: address; bytes from a page, a head, a
        slot and an element to the next; pages, heads, page size, width; bytes of an element."""
        rows = [
            (view.data_ptr(), *(step * view.element_size() for step in view.stride()), *view.shape, view.element_size())
            for view in self
        ]
        return torch.tensor(rows, dtype=torch.int64)


class Addresses(tuple[Tensor, ...]):
    """Tensors that a kernel finds by their addresses in a table."""

    def __new__(cls, tensors: Iterable[Tensor]) -> "Addresses":
        return super().__new__(cls, tensors)

    @property
    def key(self) -> tuple[int, ...]:
        """The same for tables that hold the same."""
        return tuple(tensor.data_ptr() for tensor in self)

    @cached_property
    def table(self) -> Tensor:
        """``[tensors]`` int64 on their device."""
        return torch.tensor(self.key, dtype=torch.int64, device=self[0].device)
