"""What a pass does on a CPU, operation by operation, to be done again on the same memory.

On a CPU most of a small pass is Python: modules, dispatch and views. A recording keeps the operations alone. It is to a
CPU what a CUDA graph is to a GPU: a replay reads the tensors that the pass read, where they were, and leaves its
results where the pass left them. Shapes and numbers that Python worked out stay as they were.
"""

from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from vllm_specext.kernels.native.operators import bind

Call = Callable[[], Any]
Piece = Hashable

WHOLE = "whole"
"""Name of what comes before the first cut."""

aten = torch.ops.aten
WAITS = frozenset({torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape})
"""Tags of operations whose result Python sees, or whose shape depends on values: a replay cannot repeat what
followed."""
READS = frozenset({Tensor.tolist, Tensor.numpy, Tensor.__array__})
"""What reads memory without an operation, so that Python sees values."""
ALLOCATES = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"})
REPEATS: dict[Any, Callable[..., Any]] = {
    aten._to_copy.default: Tensor.copy_,
    aten.clone.default: Tensor.copy_,
    aten.zeros_like.default: lambda made, like: made.zero_(),
}
"""Operations that have no overload which writes to given tensors under the same arguments: what to do with their result
and their first argument instead."""


@dataclass(frozen=True)
class Operation:
    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    made: list[Tensor]
    """Its results."""

    @cached_property
    def reads(self) -> set[int]:
        """Where the storages of its arguments are."""
        return _storages((self.args, self.kwargs))

    @cached_property
    def writes(self) -> set[int]:
        """Where the storages of the arguments are that it changes."""
        if not self.operator._schema.is_mutable:
            return set()
        named = zip(self.operator._schema.arguments, self.args, strict=False)
        changed = [value for argument, value in named if _changes(argument)]
        by_name = {argument.name: argument for argument in self.operator._schema.arguments}
        changed += [value for name, value in self.kwargs.items() if _changes(by_name[name])]
        return _storages(changed)

    @property
    def fresh(self) -> list[Tensor]:
        """Its results that lie in memory of their own."""
        return [tensor for tensor in self.made if _storage(tensor) not in self.reads]

    def call(self) -> Call:
        """The operation again, with its results where they are."""
        if (bound := None if self.kwargs else bind(self.operator, self.args)) is not None:
            return bound
        if self.operator in REPEATS:
            return partial(REPEATS[self.operator], self.made[0], *self.args[:1])
        fresh = self.fresh
        if not fresh:
            return partial(self.operator._op, *self.args, **self.kwargs)
        writing = _writing(self.operator)
        if writing is not None and len(writing.names) == len(self.made) == len(fresh):
            return partial(
                writing.operator._op, *self.args, **self.kwargs, **dict(zip(writing.names, fresh, strict=True))
            )
        return partial(_again, self)


class Recording:
    """A pass may be cut into pieces of which a replay leaves some out. They run one after the other over the same
    memory, so that what is left out has to be a step that later ones can do without."""

    def __init__(self) -> None:
        self._taken: list[Operation] = []
        self._cuts: list[tuple[Piece, int]] = [(WHOLE, 0)]
        """Where each piece begins."""
        self._pieces: list[tuple[Piece, list[Call]]] | None = None

    @property
    def bytes(self) -> int:
        """Memory that the operations allocated for their results; asked before the first replay."""
        made = (tensor.untyped_storage() for operation in self._taken for tensor in operation.fresh)
        return sum({storage._cdata: storage.nbytes() for storage in made}.values())

    @contextmanager
    def taking(self) -> Iterator[None]:
        """Take down what runs here. Raises ``RuntimeError`` at the first operation that cannot be replayed."""
        with _Watch(), _Taker(self._taken):
            yield

    def cut(self, piece: Piece) -> None:
        """What follows, up to the next cut, is this ``piece``."""
        self._cuts.append((piece, len(self._taken)))

    def replay(self, without: Collection[Piece] = ()) -> None:
        """Run the pass again, ``without`` these pieces."""
        if self._pieces is None:
            self._pieces = self._finished()
        for piece, calls in self._pieces:
            if piece not in without:
                for call in calls:
                    call()

    def _finished(self) -> list[tuple[Piece, list[Call]]]:
        needed = _needed(self._taken)
        ends = [start for _, start in self._cuts[1:]] + [len(self._taken)]
        pieces = [
            (piece, [self._taken[place].call() for place in range(start, end) if place in needed])
            for (piece, start), end in zip(self._cuts, ends, strict=True)
        ]
        self._taken = []
        return pieces


class _Taker(TorchDispatchMode):
    def __init__(self, taken: list[Operation]) -> None:
        super().__init__()
        self._taken = taken

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _waits(func, args):
            raise RuntimeError(f"a pass that runs {func} cannot be recorded: Python sees its result")
        kwargs = kwargs or {}
        # Operators of other libraries may pass for compositions of others and do their work unseen.
        if func.namespace == "aten" and func._can_decompose():
            with self:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        with torch._C.DisableTorchFunction():  # what an operator of Python's does inside is its own
            made = func(*args, **kwargs)
        operation = Operation(func, args, kwargs, list(_tensors(made)))
        # A view stays one, and what is allocated stays where it is.
        is_view = bool(operation.made) and all(_storage(tensor) in operation.reads for tensor in operation.made)
        if func._schema.is_mutable or not is_view:
            self._taken.append(operation)
        return made


class _Watch(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in READS:
            raise RuntimeError(f"a pass that runs {func} cannot be recorded: Python sees its result")
        return func(*args, **(kwargs or {}))


def _waits(operator: Any, args: tuple[Any, ...]) -> bool:
    if operator == aten.index.Tensor:
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return not WAITS.isdisjoint(operator.tags)


def _needed(taken: Sequence[Operation]) -> set[int]:
    """Places of the operations without those that only allocate, and without those whose results are always the same:
    they read nothing but such results, and nobody changes them."""
    changed = set().union(*(operation.writes for operation in taken))
    constant: set[int] = set()
    needed = set()
    for place, operation in enumerate(taken):
        made = {_storage(tensor) for tensor in operation.made}
        if _allocates(operation.operator):
            continue
        if (
            not operation.writes
            and operation.reads <= constant
            and not made & changed
            and not _draws(operation.operator)
        ):
            constant |= made
        else:
            needed.add(place)
    return needed


class _Writing(NamedTuple):
    operator: Any
    names: tuple[str, ...]
    """The arguments that it writes to, in the order of the results."""


@cache
def _writing(operator: Any) -> _Writing | None:
    """The overload of ``operator`` that writes to given tensors, ``None`` where there is none."""
    own = [(argument.name, str(argument.type)) for argument in operator._schema.arguments]
    packet = operator.overloadpacket
    for name in packet.overloads():
        arguments = getattr(packet, name)._schema.arguments
        rest = [(argument.name, str(argument.type)) for argument in arguments if not argument.is_out]
        if len(rest) < len(arguments) and rest == own:
            return _Writing(getattr(packet, name), tuple(argument.name for argument in arguments if argument.is_out))
    return None


def _again(operation: Operation) -> None:
    """Run an operation that makes new tensors, and copy them to where its results are."""
    made = _tensors(operation.operator(*operation.args, **operation.kwargs))
    for old, new in zip(operation.made, made, strict=True):
        if old.data_ptr() != new.data_ptr():
            old.copy_(new)


def _allocates(operator: Any) -> bool:
    return operator.namespace == "aten" and operator.overloadpacket.__name__ in ALLOCATES


def _draws(operator: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in operator.tags


def _changes(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _tensors(values: Any) -> Iterator[Tensor]:
    """Those in ``values`` and in its tuples, lists and dictionaries, which are all that operators take and give."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _tensors(value)
    elif isinstance(values, dict):
        yield from _tensors(tuple(values.values()))


def _storages(values: Any) -> set[int]:
    return {_storage(tensor) for tensor in _tensors(values)}


def _storage(tensor: Tensor) -> int:
    """What tells storages apart; those of no bytes have no address."""
    return tensor.untyped_storage()._cdata
