"""The sanitizer can fail: it finds faults with which the interpreter comes to the right numbers."""
# Triton's compile-time arguments are upper case, and of the other arguments it wants no annotations.
# ruff: noqa: N803
# mypy: allow-untyped-defs, allow-incomplete-defs

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl
from cache_layouts import halves
from test_kv_compaction import caches
from test_tree_expansion import check, proposals
from torch import Tensor
from triton.runtime.errors import InterpreterError

from vllm_specext.kernels.kv_compaction.kernel import compact
from vllm_specext.kernels.pointers import Caches
from vllm_specext.kernels.tree_expansion.kernel import FusedExpansion

NO_TENSOR, PROGRAMS = "lie in no tensor of the launch", "one program writes what another one reads or writes"
NO_BARRIER, VALUES = "with no barrier between", "one operation writes two values to one address"


@triton.jit
def _copy(from_ptr, to_ptr, count, BLOCK: tl.constexpr):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(to_ptr + place, tl.load(from_ptr + place, mask=place < count, other=0), mask=place < count)


@triton.jit
def _fill(from_ptr, to_ptr, count, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(to_ptr + place, tl.load(from_ptr + place, mask=place < count))


@triton.jit
def _shift(ptr, steps, BLOCK: tl.constexpr, WAITS: tl.constexpr):
    place = tl.arange(0, BLOCK)
    value = tl.load(ptr + place + steps)
    if WAITS:
        tl.debug_barrier()
    tl.store(ptr + place, value)


@triton.jit
def _scatter(ptr, to_ptr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    tl.store(ptr + tl.load(to_ptr + place), place)


FAULTS = {
    "it reads after the end": (NO_TENSOR, lambda a, b: _copy[1,](a[:63], b, 64, BLOCK=64)),
    "it writes after the end": (NO_TENSOR, lambda a, b: _copy[1,](a, b[:63], 64, BLOCK=64)),
    "programs write the same": (PROGRAMS, lambda a, b: _scatter[2,](b, a, BLOCK=64)),
    "a program reads what another writes": (PROGRAMS, lambda a, b: _copy[2,](a, a[64:], 128, BLOCK=64)),
    "warps do not wait": (NO_BARRIER, lambda a, b: _shift[1,](a, 1, BLOCK=128, WAITS=False)),
    "several warps hold an element": (NO_BARRIER, lambda a, b: _shift[1,](a, 0, BLOCK=64, WAITS=False)),
    "two values go to one address": (VALUES, lambda a, b: _scatter[1,](b, a // 2, BLOCK=64)),
}
RIGHT = {
    "each program has its own": lambda a, b: _copy[2,](a, b, 128, BLOCK=64),
    "a mask ends at the end": lambda a, b: _copy[2,](a[:100], b, 100, BLOCK=64),
    "warps wait": lambda a, b: _shift[1,](a, 1, BLOCK=128, WAITS=True),
    "each thread has its own": lambda a, b: _shift[1,](a, 0, BLOCK=128, WAITS=False),
    "there is one warp": lambda a, b: _shift[1,](a, 0, BLOCK=16, WAITS=False, num_warps=1),
}


def numbers_and_room() -> tuple[Tensor, Tensor]:
    return torch.arange(256, dtype=torch.int32), torch.zeros(256, dtype=torch.int32)


# Not a case for each, of which only some would be run by default.
def test_faults_are_found() -> None:
    for message, launch in FAULTS.values():
        with pytest.raises((AssertionError, InterpreterError), match=message):
            launch(*numbers_and_room())


def test_what_is_right_passes() -> None:
    for launch in RIGHT.values():
        launch(*numbers_and_room())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_masked_loads_leave_garbage(dtype: torch.dtype) -> None:
    numbers, room = torch.arange(64).to(dtype), torch.zeros(64, dtype=dtype)
    _fill[1,](numbers, room, 60, BLOCK=64)
    assert torch.equal(room[:60], numbers[:60])
    assert room[60:].isnan().all()


def _compact() -> None:
    slots = torch.arange(64).view(1, -1)
    compact(Caches(caches(halves, torch.float32)), slots[:, ::2], slots[:, :32])


@pytest.mark.parametrize(
    "launch", [_compact, lambda: check(FusedExpansion, 2, proposals("distinct", 1, 4, 2), [12])], ids=["move", "expand"]
)
def test_our_kernels_need_their_barriers(launch: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    launch()
    monkeypatch.setattr(tl, "debug_barrier", lambda: None)
    with pytest.raises(AssertionError, match=NO_BARRIER):
        launch()
