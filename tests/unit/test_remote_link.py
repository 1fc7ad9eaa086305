"""The link that stands for a network in the tests of a client and a server."""

import asyncio
import random

import pytest

from tests.unit.remote_link import PRESETS, SEGMENT, Direction, Link, ToyTarget, run, serve


@pytest.mark.parametrize("preset", PRESETS)
def test_a_link_is_as_fast_and_as_slow_as_it_says(preset: str) -> None:
    kind = PRESETS[preset]

    async def main() -> None:
        link = Link(kind, lambda: serve(ToyTarget()))
        loop = asyncio.get_running_loop()
        count, size = 4000, 20 * SEGMENT
        for _ in range(count):
            last = link.down.arrival(size)
        per_second = count * size / (last - loop.time() - link.down.delay)
        assert per_second == pytest.approx(kind.rate * 125e3, rel=0.05)
        quiet = Direction(link.up.rate, link.up.delay, link.up.jitter, 0.0, random.Random(0))
        delays = []
        for _ in range(2000):
            await asyncio.sleep(1)
            delays.append(quiet.arrival(100) - loop.time())
        assert sum(delays) / len(delays) == pytest.approx(kind.up / 1e3 + 100 / quiet.rate, rel=0.05)

    run(main())
