"""Launches of Triton kernels that are made again with other tensors.

Whenever a kernel is called, Triton works out of each argument what was compiled for, which takes the host some 20
microseconds with sixty arguments. Layers of a step launch the same kernels on the same batch and differ in a few
tensors: a launch that is made again goes straight to the same binary, and takes 4.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes. Of a tensor Triton's compiler takes its type for granted, and whether its address is a multiple of this."""


class Launched(Protocol):
    @property
    def can_repeat(self) -> bool: ...

    def __call__(self, *tensors: Tensor | None) -> None:
        """Launch again."""


def launch_as_before(
    kept: dict[Hashable, Any],
    tensors: Sequence[Tensor | None],
    same: tuple[Hashable, ...],
    first: Callable[[], Launched],
) -> None:
    """Launch with ``tensors`` as before with others of the same types and strides, if all that a launch depends on
    besides, ``same``, was equal. Otherwise ``first`` launches with them, and what it returns is ``kept`` for the next.

    The first tensor is never ``None``. How many rows tensors have may differ: it says nothing of the launch."""
    if not _aligned(tensors):
        first()
        return
    # What a graph captures may not use the memory of a pass before it.
    assert tensors[0] is not None
    captured = tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()
    forms = tuple(None if each is None else (each.dtype, each.shape[1:], each.stride()) for each in tensors)
    key = captured, forms, same
    before = kept.get(key)
    if before is not None:
        before(*tensors)
    elif (launched := first()).can_repeat:
        kept[key] = launched


def _aligned(tensors: Sequence[Tensor | None]) -> bool:
    """Whether all addresses are what the usual binary was compiled for."""
    addresses = 0
    for tensor in tensors:
        if tensor is not None:
            addresses |= tensor.data_ptr()
    return addresses % ALIGNMENT == 0


class Relaunch:
    """Launches a kernel when it is made, and again whenever it is called, with other tensors of the same types that are
    aligned as the first ones were, ``None`` in the same places."""

    def __init__(
        self,
        kernel: Any,
        grid: tuple[int, int, int],
        tensors: Sequence[Tensor | None],
        others: Sequence[Any],
        **named: Any,
    ) -> None:
        """``tensors``: the first arguments, for which others will be given. ``others``: the arguments after them.
        ``named``: all that are compiled in, and the compiler's options."""
        self._binary, self._grid = kernel[grid](*tensors, *others, **named), grid
        compiled_in = kernel.arg_names[len(tensors) + len(others) :]
        self._others = *others, *(named[name] for name in compiled_in)

    @property
    def can_repeat(self) -> bool:
        """Triton's interpreter leaves no binary."""
        return self._binary is not None

    def __call__(self, *tensors: Tensor | None) -> None:
        self._binary[self._grid](*tensors, *self._others)
