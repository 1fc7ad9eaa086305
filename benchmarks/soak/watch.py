"""What a server under load looks like from outside: the memory of its processes and what its metrics say."""

import asyncio
import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from vllm_specext.measure.server import Server

INTERVAL = 5.0
"""Seconds between two samples."""
LARGEST = 4


@dataclass(frozen=True)
class Sample:
    seconds: float
    resident_mebibytes: float
    """The memory of all processes of the server together; what they share counts for each."""
    by_process: dict[str, float]
    """The memory of the largest processes, by title."""
    running: int
    waiting: int
    cache_usage: float
    """Share of the blocks that requests hold."""
    preemptions: int
    tokens: int
    """Generated since the server's start."""


class Watch:
    def __init__(self, server: Server) -> None:
        self.server = server
        self.begun = time.monotonic()
        self.samples: list[Sample] = []

    def look(self) -> Sample:
        values: defaultdict[str, float] = defaultdict(float)
        for sample in self.server.samples():
            values[sample.name] += sample.value
        memory = resident_mebibytes(self.server)
        largest = sorted(memory.items(), key=lambda item: -item[1])[:LARGEST]
        return Sample(
            round(time.monotonic() - self.begun, 1),
            round(sum(memory.values()), 1),
            dict(largest),
            int(values["vllm:num_requests_running"]),
            int(values["vllm:num_requests_waiting"]),
            round(values["vllm:kv_cache_usage_perc"], 4),
            int(values["vllm:num_preemptions_total"]),
            int(values["vllm:generation_tokens_total"]),
        )

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self.samples.append(await asyncio.to_thread(self.look))
            await asyncio.sleep(INTERVAL)

    async def settle(self, seconds: float) -> Sample:
        """The first sample without a request, or the last after ``seconds``."""
        end = time.monotonic() + seconds
        while True:
            sample = await asyncio.to_thread(self.look)
            if not (sample.running or sample.waiting or sample.cache_usage) or time.monotonic() > end:
                return sample
            await asyncio.sleep(0.5)


def processes(server: Server) -> list[psutil.Process]:
    """The server's own and those that it has started."""
    assert server.process is not None
    root = psutil.Process(server.process.pid)
    return [root, *root.children(recursive=True)]


def resident_mebibytes(server: Server) -> dict[str, float]:
    """The memory by title of the process, which vLLM gives to its own, or by the program's name."""
    found: defaultdict[str, float] = defaultdict(float)
    for process in processes(server):
        with contextlib.suppress(psutil.NoSuchProcess):  # has just ended
            title = "".join(process.cmdline()[:1]).rpartition("/")[2]
            found[title] += round(process.memory_info().rss / 2**20, 1)
    return found


def memory_by_quarter(samples: Sequence[Sample]) -> list[float]:
    """Median MiB of each quarter of the time; the first is that of warming up."""
    seen = [[sample.resident_mebibytes for sample in quarter] for quarter in _quarters(samples)]
    return [round(statistics.median(quarter), 1) if quarter else 0.0 for quarter in seen]


def speed_by_quarter(samples: Sequence[Sample]) -> list[float]:
    """Generated tokens per second of each quarter of the time."""
    ends = [(quarter[0], quarter[-1]) if quarter else None for quarter in _quarters(samples)]
    return [
        round((end[1].tokens - end[0].tokens) / max(end[1].seconds - end[0].seconds, 1e-9), 1) if end else 0.0
        for end in ends
    ]


def _quarters(samples: Sequence[Sample]) -> list[Sequence[Sample]]:
    return [samples[len(samples) * i // 4 : len(samples) * (i + 1) // 4] for i in range(4)]
