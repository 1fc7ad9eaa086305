"""What NVIDIA's compute-sanitizer looks for on a GPU, in Triton's interpreter: wrong addresses and races.

The interpreter runs a launch's programs one after another and each operation as a whole. On a GPU programs run in any
order and at the same time, and the warps of a program only wait for each other at a barrier. So a kernel that leans on
the interpreter's order passes every comparison here. This keeps a list of what each program reads and writes, and fails
where

* an address lies neither in a tensor that the launch was given nor in a tensor that a table of addresses names;
* one program writes what another reads or writes;
* one operation of a program writes what another one reads or writes, with no barrier between them. The same place of
  tiles of one shape is excused, because one thread has it, unless tiles are so small that several warps hold copies;
* one operation writes two values to one address.

Where a load's mask is not set and it names no other value, it gives garbage. What a compiler may do to the order of
operations is not seen.
"""

import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import triton.language as tl
import triton.runtime.interpreter as interpreter
from torch import Tensor

from vllm_specext.kernels.pointers import Addresses, Caches

WARP = 32
"""Threads of a warp."""


@dataclass
class Launch:
    name: str
    areas: list[tuple[int, int]]
    """The first byte of each tensor, and the one after its last."""
    warps: int
    program: int = -1
    phase: int = 0
    """Barriers that the programs have passed, and programs that have begun."""
    operations: int = 0
    shapes: dict[tuple[int, ...], int] = field(default_factory=dict)
    found: list[np.ndarray] = field(default_factory=list)
    """Of each operation ``[6, elements]``: address, program, phase, operation, place in a tile, whether it writes."""

    def begin(self) -> None:
        """The next program."""
        self.program += 1
        self.phase += 1

    def note(self, pointers: Any, mask: Any, value: Any = None) -> None:
        """An operation reads, or writes ``value``, at those of ``pointers`` where ``mask`` is set."""
        self.operations += 1
        shape, width = np.shape(pointers.data), pointers.get_element_ty().primitive_bitwidth // 8
        place = np.flatnonzero(np.broadcast_to(mask.data, shape))
        address = np.ravel(pointers.data)[place].astype(np.int64)
        inside = np.zeros(len(address), dtype=bool)
        for first, end in self.areas:
            inside |= (address >= first) & (address + width <= end)
        assert inside.all(), f"{self.name}: {np.sum(~inside)} addresses of an operation lie in no tensor of the launch"
        if value is not None:
            values = np.broadcast_to(value.data, shape).ravel()[place].view(f"u{value.data.itemsize}")
            assert not _several(address, values).size, f"{self.name}: one operation writes two values to one address"
        if self.warps > 1 and np.prod(shape) < WARP * self.warps:
            place = np.full_like(place, -self.operations)  # is in several warps, and so like no other
        else:
            place = place + (self.shapes.setdefault(shape, len(self.shapes)) << 32)
        of_all = [self.program, self.phase, self.operations]
        self.found.append(np.stack(np.broadcast_arrays(address, *of_all, place, value is not None)).astype(np.int64))

    def check_order(self) -> None:
        """Fail on what another order of programs or warps would change."""
        rows = np.concatenate(self.found or [np.empty((6, 0), dtype=np.int64)], axis=1)
        rows = rows[:, np.isin(rows[0], rows[0, rows[5] == 1])]
        address, program, phase, operation, place, writes = rows
        assert not _several(address, program).size, f"{self.name}: one program writes what another one reads or writes"
        group = np.unique(address, return_inverse=True)[1] * (self.phase + 1) + phase
        written = np.isin(group, group[writes == 1])
        hidden = np.intersect1d(*(_several(group[written], value[written]) for value in (operation, place)))
        assert not hidden.size, f"{self.name}: one operation writes what another one uses, with no barrier between"


def _several(group: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The groups that hold several values, each once or more."""
    order = np.lexsort((value, group))
    group, value = group[order], value[order]
    found: np.ndarray = group[1:][(group[1:] == group[:-1]) & (value[1:] != value[:-1])]
    return found


_cached: "weakref.WeakValueDictionary[int, Tensor]" = weakref.WeakValueDictionary()
"""Tensors whose addresses kernels find in a table."""
_launch: Launch | None = None


def _areas(tensors: Iterable[Any]) -> list[tuple[int, int]]:
    found = []
    for view in tensors:
        if isinstance(view, Tensor) and view.numel():
            steps = sum((size - 1) * step for size, step in zip(view.shape, view.stride(), strict=True))
            found.append((view.data_ptr(), view.data_ptr() + (steps + 1) * view.element_size()))
    return found


def _garbage(dtype: np.dtype) -> Any:
    """What nobody may read."""
    return np.array(np.nan if dtype.kind == "f" else -77).astype(dtype)  # bfloat16 is held as uint16: NaN there, too


def install() -> None:
    """Watch every launch from now on of a kernel that is not vLLM's."""
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    call, begin = executor.__call__, builder.set_grid_idx
    load, store = builder.create_masked_load, builder.create_masked_store

    def watched_call(self: Any, *args: Any, **kwargs: Any) -> None:
        global _launch
        if self.fn.__module__.startswith("vllm."):
            call(self, *args, **kwargs)
            return
        areas = _areas([*args, *kwargs.values(), *_cached.values()])
        _launch = launch = Launch(self.fn.__name__, areas, kwargs.get("num_warps", 4))
        try:
            call(self, *args, **kwargs)
        finally:
            _launch = None
        launch.check_order()

    def watched_begin(self: Any, *place: int) -> None:
        if _launch is not None:
            _launch.begin()
        begin(self, *place)

    def watched_barrier() -> None:
        if _launch is not None:
            _launch.phase += 1

    def watched_load(self: Any, pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        if _launch is None:
            return load(self, pointers, mask, other, *rest)
        _launch.note(pointers, mask)
        loaded = load(self, pointers, mask, other, *rest)
        if other is None:  # the interpreter has zeros
            loaded.data = np.where(mask.data, loaded.data, np.full_like(loaded.data, _garbage(loaded.data.dtype)))
        return loaded

    def watched_store(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if _launch is not None:
            _launch.note(pointers, mask, value)
        return store(self, pointers, value, mask, *rest)

    def watched(make: Any) -> Any:
        def make_watched(cls: type[Any], tensors: Iterable[Tensor]) -> Any:
            made = make(cls, tensors)
            _cached.update({id(tensor): tensor for tensor in made})
            return made

        return make_watched

    executor.__call__, builder.set_grid_idx = watched_call, watched_begin
    tl.debug_barrier = watched_barrier  # where vLLM, on a CPU, has put a function that does nothing
    builder.create_masked_load, builder.create_masked_store = watched_load, watched_store
    Caches.__new__, Addresses.__new__ = watched(Caches.__new__), watched(Addresses.__new__)  # type: ignore[method-assign]
