"""Copies from the device to host memory, made while the device goes on."""

from collections.abc import Iterable

import torch
from torch import Tensor


class HostCopies:
    """On a GPU the copies run on a stream of their own, and nobody waits for them before ``wait``. Elsewhere they are
    plain copies."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def copy(self, pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        """Copy each source to its destination, of the same shape, in host memory: pinned beside a GPU.

        The sources belong to nobody else: what vLLM writes in the next step must not reach them.
        """
        if self.stream is None:
            for source, destination in pairs:
                destination.copy_(source)
            return
        self.stream.wait_stream(torch.cuda.current_stream(self.stream.device))
        with torch.cuda.stream(self.stream):
            for source, destination in pairs:
                destination.copy_(source, non_blocking=True)
                source.record_stream(self.stream)

    def wait(self) -> None:
        """Until all copies have been made."""
        if self.stream is not None:
            self.stream.synchronize()
