"""Recordings of draft passes on a CPU, with the interface that graphs of draft passes have on a GPU.

A pass is recorded when it is first run for a number of requests, so that nothing is padded and a start takes no longer.
"""

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any

import torch

from vllm_specext.kernels.recording import Piece, Recording

Kind = Hashable
Key = tuple[int, Kind]
Mask = Callable[[int, int], None]

MOST = 32
"""Requests up to which passes are recorded. What Python takes for a pass is little beside the arithmetic of more, and
every recording keeps its own memory."""
BUDGET = 256 << 20
"""Bytes that the results of all recordings may take together. A drafter whose results are larger has little to gain."""


class RecordedPasses:
    def __init__(self, max_num_reqs: int) -> None:
        self.sizes: Sequence[int] = range(1, min(max_num_reqs, MOST) + 1)
        """Numbers of requests whose passes are recorded."""
        self._passes: dict[Key, Callable[[], Any]] = {}
        self._recordings: dict[Key, tuple[Recording, Any]] = {}
        self._being_recorded: Recording | None = None
        self._bytes = 0

    def needs_capture(self) -> bool:
        return True

    def capture_passes(self, passes: Mapping[Key, Callable[[], Any]]) -> None:
        """Take note of the ``passes``, by number of requests and kind."""
        self._passes.update(passes)

    def offer(self, requests: int, kind: Kind, run: Callable[[], Any]) -> None:
        """Take note of a pass that is wanted now."""
        if requests in self.sizes:
            self._passes.setdefault((requests, kind), run)

    def cut(self, piece: Piece) -> None:
        """What follows in the pass, up to the next cut, is this ``piece``; nothing while no pass is recorded."""
        if self._being_recorded is not None:
            self._being_recorded.cut(piece)

    def has(self, size: int, kind: Kind) -> bool:
        """Whether such a pass can be replayed without some of its pieces; otherwise it is recorded first, whole."""
        return (size, kind) in self._recordings

    def size_for(self, requests: int, kind: Kind) -> int | None:
        """``requests``, or ``None`` where such a pass is not recorded for so many, and will not be."""
        key = requests, kind
        return requests if key in self._recordings or (key in self._passes and self._bytes < BUDGET) else None

    def prepare(self, size: int, kind: Kind, mask: Mask | None = None) -> None:
        """Record a pass now if it is not recorded yet. It reads what is in its buffers, which ``mask(first, end)``, if
        given, fills with padding first."""
        if (size, kind) not in self._recordings and self.size_for(size, kind) is not None:
            if mask is not None:
                mask(0, size)
            self._record((size, kind))

    def replay(self, size: int, kind: Kind, without: Collection[Piece] = ()) -> Any:
        """The result of a pass, run ``without`` these pieces; one that leaves out any has been prepared."""
        if (found := self._recordings.get((size, kind))) is None:
            assert not without, "a pass is recorded whole"
            return self._record((size, kind))
        recording, result = found
        recording.replay(without)
        return result

    def forget(self) -> None:
        """Record every pass anew when it is next run."""
        self._recordings.clear()
        self._bytes = 0

    @torch.inference_mode()
    def _record(self, key: Key) -> Any:
        recording = self._being_recorded = Recording()
        try:
            with recording.taking():
                result = self._passes[key]()
        finally:
            self._being_recorded = None
        self._bytes += recording.bytes
        if self._bytes < BUDGET:
            self._recordings[key] = recording, result
        return result
