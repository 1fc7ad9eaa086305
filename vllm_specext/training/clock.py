"""How long a stage has taken, and how fast it is."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """``seconds`` of processor time that the stage has had already."""

    def __init__(self, seconds: float) -> None:
        self.began = time.process_time() - seconds
        self._begin()

    def seconds(self) -> float:
        """Processor time of the stage."""
        return time.process_time() - self.began

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """A wait for the data of a step."""
        began = time.perf_counter()
        yield
        self.waited += time.perf_counter() - began
        self.steps += 1

    def speed(self) -> dict[str, float]:
        """Steps a second and the share of the time spent waiting for data, since it was asked for last."""
        passed = max(time.perf_counter() - self.since, 1e-9)
        found = {"steps_per_s": round(self.steps / passed, 4), "data_wait": round(self.waited / passed, 4)}
        self._begin()
        return found

    def _begin(self) -> None:
        self.since, self.waited, self.steps = time.perf_counter(), 0.0, 0
