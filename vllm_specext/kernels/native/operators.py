"""The bodies in C++ as operators of torch, so that whatever watches operators sees them: profilers, and the modes by
which a CPU's passes are recorded and replayed. What is written is an argument, marked as such; nothing is returned.
"""

import ctypes
import struct
from array import array
from collections.abc import Callable, Mapping
from functools import cached_property, lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload

from vllm_specext.kernels.native.library import library

FLOAT = frozenset({torch.float32, torch.bfloat16, torch.float16})
INTEGER = frozenset({torch.int32, torch.int64})
LONG = frozenset({torch.int64})
WORD = frozenset({torch.int32})
SINGLE = frozenset({torch.float32})
BYTE = frozenset({torch.uint8})

_TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int32: 3, torch.int64: 4, torch.uint8: 5}
"""As ``arguments.h`` has them."""

_library = torch.library.Library("vllm_specext", "FRAGMENT")
_operators: dict[OpOverload, "Operator"] = {}


class Operator:
    """One body in C++ and the operator ``vllm_specext::name`` that calls it."""

    def __init__(self, name: str, tensors: Mapping[str, frozenset[torch.dtype]], others: str = "") -> None:
        """``tensors``: the tensor arguments and the data types that they may have; those whose names begin with ``out``
        are written. ``others``: the arguments after them, as in a schema; lists of tensors among them only say what
        is written besides, by way of a table of addresses."""
        self.name, self._dtypes = name, tuple(tensors.values())
        written = iter("abcdefghij")
        schema = [f"Tensor({next(written)}!) {arg}" if arg.startswith("out") else f"Tensor {arg}" for arg in tensors]
        _library.define(f"{name}({', '.join([*schema, *filter(None, [others])])}) -> ()")
        _library.impl(name, self._run, "CPU")
        _library.impl(name, _nothing, "Meta")
        self.overload: OpOverload = getattr(torch.ops.vllm_specext, name).default
        self._kinds = [str(argument.type) for argument in self.overload._schema.arguments[len(tensors) :]]
        _operators[self.overload] = self

    def takes(self, *tensors: Tensor) -> bool:
        """Whether the body is there and knows the devices and data types of ``tensors``, in the schema's order; those
        that are left out at the end are the caller's own."""
        for tensor, dtypes in zip(tensors, self._dtypes, strict=False):
            if not tensor.is_cpu or tensor.dtype not in dtypes:
                return False
        return library() is not None

    def bind(self, *args: Any) -> Callable[[], int] | None:
        """The body with these arguments, resolved once; ``None`` where it is not there."""
        if library() is None:
            return None
        words = self._words(args)
        held = (ctypes.c_int64 * len(words)).from_buffer(words)
        held.arguments = args  # type: ignore[attr-defined]  # the tensors have to stay where they are
        return partial(self._body, held)

    @cached_property
    def _body(self) -> Callable[[Any], int]:
        found = library()
        assert found is not None
        return found.body(self.name)

    def _run(self, *args: Any) -> None:
        words = self._words(args)
        if self._body(words.buffer_info()[0]):
            raise IndexError(f"vllm_specext::{self.name}: a slot is outside of the caches; nothing was done.")

    def _words(self, args: tuple[Any, ...]) -> "array[int]":
        words: list[int] = []
        tensors = len(self._dtypes)
        for tensor in args[:tensors]:
            words += (tensor.data_ptr(), _TYPES[tensor.dtype], tensor.dim(), *tensor.shape, *tensor.stride())
        for arg, kind in zip(args[tensors:], self._kinds, strict=True):
            if kind == "float":
                words.append(_bits_of(arg))
            elif kind in ("int", "bool"):
                words.append(arg)
        words.append(torch.get_num_threads())
        return array("q", words)


def bind(operator: OpOverload, args: tuple[Any, ...]) -> Callable[[], Any] | None:
    """A call of ``operator`` with ``args`` whose addresses and sizes are resolved already, for a replay on the same
    memory; ``None`` for an operator that is not a body in C++. It checks nothing that the operator raises for."""
    found = _operators.get(operator)
    return None if found is None else found.bind(*args)


@lru_cache(maxsize=256)
def _bits_of(number: float) -> int:
    """Those of a double."""
    return int(struct.unpack("q", struct.pack("d", number))[0])


def _nothing(*args: Any) -> None:
    """Nothing is computed where there is no memory."""
