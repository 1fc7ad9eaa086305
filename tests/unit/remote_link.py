"""A link between a client and a server within a process, a clock that waits for nobody, and a target and a drafter for
which a token is a sum.

A direction has a rate, a delay with jitter that keeps the order, and loses segments of 1460 bytes, each of which costs
a retransmission. Where the link is cut, what is on its way is gone, and nobody is told.
"""

import asyncio
import heapq
import random
import zlib
from array import array
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vllm_specext.remote.answer import Settings
from vllm_specext.remote.client import Client
from vllm_specext.remote.connection import LinkLost
from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.events import Done, Retracted, Said
from vllm_specext.remote.pace import Pace
from vllm_specext.remote.protocol import Sampling, Welcome
from vllm_specext.remote.rows import FLOAT16, RowFormat
from vllm_specext.remote.server import Served, converse
from vllm_specext.remote.sessions import Sessions
from vllm_specext.remote.verifier import Outcome

SEGMENT = 1460
APART = 1e-9
"""Seconds between two frames: timers of one moment run in any order."""


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time goes on where all wait, and at once to what comes next."""

    now = 0.0
    _ready: Any
    _scheduled: list[Any]

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        self._scheduled = [timer for timer in self._scheduled if not timer.cancelled()]
        heapq.heapify(self._scheduled)
        if not self._ready:
            assert self._scheduled, "nobody waits for anything that will come"
            self.now = max(self.now, self._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)


@dataclass(frozen=True)
class Preset:
    rate: float
    """Megabits per second."""
    up: float
    """Milliseconds."""
    down: float
    jitter: float = 0.0
    loss: float = 0.0


PRESETS = {
    "4g": Preset(20, 9, 21, 9, 0.001),
    "5g": Preset(50, 9, 10, 9, 0.001),
    "base": Preset(50, 4.5, 4.5),
    "lan": Preset(1000, 0.5, 0.5),
}


class Direction:
    def __init__(self, rate: float, delay: float, jitter: float, loss: float, chooser: random.Random) -> None:
        """Bytes per second, and seconds."""
        self.rate, self.delay, self.jitter, self.loss, self.chooser = rate, delay, jitter, loss, chooser
        self.free = self.last = 0.0
        self.frames = self.bytes = 0

    def arrival(self, size: int) -> float:
        now = asyncio.get_running_loop().time()
        self.frames, self.bytes = self.frames + 1, self.bytes + size
        self.free = max(now, self.free) + size / self.rate
        again = sum(self.chooser.random() < self.loss for _ in range(-(-size // SEGMENT)))
        late = self.chooser.uniform(-self.jitter, self.jitter) + again * max(0.2, 2 * self.delay)
        self.last = max(self.last + APART, self.free + self.delay + late)
        return self.last


class End:
    def __init__(self, link: "Link", way: Direction) -> None:
        self.link, self.way, self.cut = link, way, link.cuts
        self.frames: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.other: End = self
        self.closed = False

    async def send(self, frame: bytes) -> None:
        if self.closed:
            raise LinkLost("closed")
        self.link.seen.append(frame)
        loop = asyncio.get_running_loop()
        loop.call_at(self.way.arrival(len(frame)), self.other._take, frame)

    def _take(self, frame: bytes | None) -> None:
        if self.link.cuts == self.cut and self.link.is_up:
            self.frames.put_nowait(frame)

    async def receive(self) -> bytes:
        frame = await self.frames.get()
        if frame is None or self.closed:
            raise LinkLost("closed")
        return frame

    async def close(self) -> None:
        if not self.closed:
            self.closed = True
            asyncio.get_running_loop().call_at(self.way.last + APART, self.other._take, None)


class Link:
    """Connects to the server that ``served`` gives at the time."""

    def __init__(self, preset: Preset, served: Callable[[], Served], key: str = "user", seed: int = 0) -> None:
        chooser = random.Random(seed)
        ways = ((preset.up, preset.jitter), (preset.down, preset.jitter))
        self.up, self.down = (
            Direction(preset.rate * 125e3, delay / 1e3, min(jitter, delay) / 1e3, preset.loss, chooser)
            for delay, jitter in ways
        )
        self.served, self.key = served, key
        self.cuts, self.is_up = 0, True
        self.seen: list[bytes] = []
        """All frames, of both directions."""
        self.conversations: list[asyncio.Task[None]] = []

    def cut(self) -> None:
        self.cuts, self.is_up = self.cuts + 1, False

    def heal(self) -> None:
        self.is_up = True

    async def connect(self) -> End:
        await asyncio.sleep(self.up.delay + self.down.delay)
        if not self.is_up:
            raise LinkLost("no way")
        client, server = End(self, self.up), End(self, self.down)
        client.other, server.other = server, client
        self.conversations.append(asyncio.ensure_future(converse(server, self.key, self.served())))
        return client

    def end(self) -> None:
        for conversation in self.conversations:
            conversation.cancel()


VOCABULARY, END = 2048, 7
GREEDY = Sampling(0)
FORM = RowFormat(1, 2, FLOAT16)
FINGERPRINT = "0123456789abcdef" * 4


def next_token(text: list[int], sampling: Sampling) -> int:
    """What the target says: it depends on all of the text, and on the seed where it draws."""
    seed = sampling.seed if sampling.temperature else 0
    number = zlib.crc32(array("I", text), seed)
    return END if number % 101 == 0 else 8 + number % (VOCABULARY - 8)


def plain(prompt: list[int], sampling: Sampling, max_tokens: int) -> list[int]:
    said: list[int] = []
    while len(said) < max_tokens and END not in said:
        said.append(next_token(prompt + said, sampling))
    return said


@dataclass
class ToyTarget:
    """Its row of a token: the token and its place."""

    seconds: float = 0.01
    token_seconds: float = 0.008
    asked: int = 0
    fault: Callable[[list[int]], list[int]] = lambda tokens: tokens

    def for_user(self, key: str) -> "ToyTarget":
        return self

    async def verify(
        self, text: list[int], tree: Drafted, sampling: Sampling, form: RowFormat, first_row: int, extra: int
    ) -> Outcome:
        self.asked += 1
        await asyncio.sleep(self.seconds + self.token_seconds * extra)
        said, at = [next_token(text, sampling)], 0
        while True:
            child = np.flatnonzero((tree.parents == at) & (tree.ids == said[-1]))
            if not len(child):
                break
            at = int(child[0]) + 1
            said.append(next_token(text + said, sampling))
        for _ in range(extra):
            said.append(next_token(text + said, sampling))
        said = self.fault(said)
        read = torch.tensor((text + said)[first_row : len(text) + len(said) - 1], dtype=torch.float32)
        keys = read[:, None, None].expand(-1, 1, 2)
        values = torch.arange(first_row, first_row + len(read), dtype=torch.float32)[:, None, None].expand(-1, 1, 2)
        seconds = self.seconds + self.token_seconds * extra
        return Outcome(said, form.pack(keys, values).numpy().tobytes(), 1000 * seconds)


@dataclass
class ToyDrafter:
    """Says what the target would with probability ``knows``, and drafts two nodes a level."""

    sampling: Sampling
    knows: float
    chooser: random.Random
    levels: int = 4
    seconds: float = 0.002
    rows: list[tuple[float, float]] = field(default_factory=list)

    def _guess(self, text: list[int]) -> int:
        right = next_token(text, self.sampling)
        return right if self.chooser.random() < self.knows else self.chooser.randrange(8, VOCABULARY)

    async def draft(self, text: list[int], max_nodes: int) -> Drafted:
        await asyncio.sleep(self.seconds)
        ids: list[int] = []
        parents: list[int] = []
        at, path = 0, list(text)
        for _ in range(self.levels):
            token = self._guess(path)
            other = (token + 1) % VOCABULARY
            ids += [token, other]
            parents += [at, at]
            at = len(ids) - 1
            path.append(token)
        return Drafted(np.array(ids), np.array(parents), self.levels)

    async def say(self, text: list[int], sampling: Sampling) -> int:
        await asyncio.sleep(self.seconds)
        return self._guess(text)

    def take(self, first: int, keys: Tensor, values: Tensor) -> int:
        assert first <= len(self.rows), "rows are missing"
        self.rows[first:] = [(float(key[0, 0]), float(value[0, 0])) for key, value in zip(keys, values, strict=True)]
        return len(self.rows)


def serve(target: ToyTarget, max_length: int = 4096) -> Served:
    limits = Welcome(0, "toy", VOCABULARY, max_length, 62, 6)
    loop = asyncio.get_running_loop()
    return Served(limits, FINGERPRINT, 1, 2, frozenset({END}), Sessions(max_length, loop.time), target)


def settings(**changes: Any) -> Settings:
    return Settings(FINGERPRINT, FORM, **({"ends": frozenset({END})} | changes))


async def answer(
    link: Link,
    drafter: ToyDrafter,
    prompt: list[int],
    max_tokens: int = 48,
    always_draft: bool = False,
    **changes: Any,
) -> tuple[list[int], list[bool], Done, list[float]]:
    """The tokens, whether each was verified when it was said last, how it ended, and when each was said."""
    chooser = random.Random(drafter.chooser.random())
    client = Client(link.connect, drafter, settings(**changes), chooser, Pace(always_draft))
    ids: list[int] = []
    verified: list[bool] = []
    times: list[float] = []
    async for event in client.answer(prompt, drafter.sampling, max_tokens):
        if isinstance(event, Said):
            ids += event.ids
            verified += [event.verified] * len(event.ids)
            times += [asyncio.get_running_loop().time()] * len(event.ids)
        elif isinstance(event, Retracted):
            del ids[-event.count :], verified[-event.count :], times[-event.count :]
        else:
            return ids, verified, event, times
    raise AssertionError("no end")
