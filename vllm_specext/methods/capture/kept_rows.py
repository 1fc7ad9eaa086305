"""What the target left for the rows of its steps, in host memory, until it is written.

Rows lie in the order in which they came, so that a step is one copy, whatever requests it had. Where a request's
positions lie is found when they are asked for. A position that was computed again, after a preemption or because a
drafted token was rejected, counts as it was computed last.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vllm_specext.methods.capture.host_copies import HostCopies

MOVED = 4096
"""Rows that are moved at once."""


@dataclass(frozen=True)
class StepRows:
    """What a step leaves for its ``T`` rows, on the device."""

    token_ids: Tensor
    """``[T]`` int32."""
    positions: Tensor
    """``[T]`` int64."""
    features: Tensor
    """``[T, d]``"""
    aux: Tensor | None
    """``[T, n · d]``"""

    def tensors(self) -> list[Tensor]:
        return [each for each in vars(self).values() if each is not None]


class KeptRows:
    """Room for ``capacity`` rows, ``width`` numbers each and ``aux_width`` further ones."""

    def __init__(self, capacity: int, width: int, aux_width: int, dtype: torch.dtype, device: torch.device) -> None:
        pinned = device.type == "cuda"

        def room(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.empty(capacity, *shape, dtype=dtype, pin_memory=pinned)

        self.capacity = capacity
        self.rows = StepRows(
            room(dtype=torch.int32),
            room(dtype=torch.int64),
            room(width, dtype=dtype),
            room(aux_width, dtype=dtype) if aux_width else None,
        )
        self.copies = HostCopies(device)
        self.used = 0
        self._places: dict[str, list[range]] = {}
        """Where the rows of each request lie, as they came."""
        self._incomplete: set[str] = set()
        """Requests of which rows found no room."""

    def add(self, requests: Sequence[str], starts: Sequence[int], step: StepRows) -> None:
        """Keep the rows of a step: ``requests[i]`` has those from ``starts[i]`` to ``starts[i + 1]``, which is ``T``
        after the last.

        Where there is no room, requests of the step are given up, those with the fewest rows first.
        """
        if not self._make_room(starts[-1], requests):
            return
        first = self.used
        self.used += starts[-1]
        self.copies.copy(zip(step.tensors(), (own[first : self.used] for own in self.rows.tensors()), strict=True))
        for request, start, stop in zip(requests, starts, starts[1:], strict=False):
            if request not in self._incomplete:
                self._places.setdefault(request, []).append(range(first + start, first + stop))

    @property
    def requests(self) -> list[str]:
        """Those of which rows have been kept or given up."""
        return [*self._places, *self._incomplete]

    def places(self, request: str, length: int) -> Tensor | None:
        """Where in ``rows`` the first ``length`` positions of ``request`` lie, ``[length]``; ``None`` where one is
        missing. The copies have been waited for."""
        found = self._latest(request)[:length]
        return None if len(found) < length or bool((found < 0).any()) else found

    def forget(self, requests: Iterable[str]) -> None:
        """The rows of these are not wanted any more."""
        for request in requests:
            self._places.pop(request, None)
            self._incomplete.discard(request)

    def clear(self) -> None:
        """Forget all."""
        self.copies.wait()
        self._places.clear()
        self._incomplete.clear()
        self.used = 0

    def _latest(self, request: str) -> Tensor:
        """Where each position of ``request`` lies that was computed last, ``[positions]``; -1 for none."""
        came = torch.tensor([place for places in self._places.get(request, []) for place in places], dtype=torch.int64)
        positions = self.rows.positions[came]
        found = torch.full((int(positions.max()) + 1 if len(came) else 0,), -1)
        # The places rise as the rows came. Nobody says which of several values an assignment by index leaves.
        return found.scatter_reduce_(0, positions, came, "amax")

    def _make_room(self, count: int, requests: Sequence[str]) -> bool:
        """Whether ``count`` more rows have room in the end."""
        if self.used + count <= self.capacity:
            return True
        self._close_gaps()
        given_up = 0
        for request in sorted(requests, key=self._size):
            if self.used - given_up + count <= self.capacity:
                break
            given_up += self._size(request)
            self.forget([request])
            self._incomplete.add(request)
        if given_up:
            self._close_gaps()
        return self.used + count <= self.capacity

    def _size(self, request: str) -> int:
        return sum(map(len, self._places.get(request, [])))

    def _close_gaps(self) -> None:
        """Move the rows together that are still wanted, in the order in which they came."""
        self.copies.wait()
        latest = {request: found[found >= 0] for request in self._places for found in [self._latest(request)]}
        wanted = torch.cat([*latest.values(), torch.empty(0, dtype=torch.int64)]).sort().values
        for first in range(0, len(wanted), MOVED):
            # Rows only move to the front, so that none is written over before it has moved.
            moved = wanted[first : first + MOVED]
            for own in self.rows.tensors():
                own[first : first + len(moved)] = own[moved]
        self.used = len(wanted)
        self._places = {
            request: _ranges(torch.searchsorted(wanted, found).sort().values.tolist())
            for request, found in latest.items()
        }


def _ranges(places: Sequence[int]) -> list[range]:
    """``places``, which rise, as ranges."""
    found: list[range] = []
    for place in places:
        if found and found[-1].stop == place:
            found[-1] = range(found[-1].start, place + 1)
        else:
            found.append(range(place, place + 1))
    return found
