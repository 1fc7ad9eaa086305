"""Clients of a server that behave well and badly, and what became of what they sent.

Every finished answer is compared with the known one, and what came of an aborted stream with its beginning, if
``Workload.compared`` says so. A difference or an answer of the wrong status is noted, never raised: the load goes on.
"""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from benchmarks.soak.workload import Fault, Request, Workload

PATH = "/v1/completions"
TIMEOUT = 300.0
"""Seconds after which a request that got no byte counts as hanging."""


@dataclass
class Outcome:
    """Counts by what the client did, and what went wrong; ``differing`` are indices of requests."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    differing: list[int] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    tokens: int = 0
    """Compared with plain decoding."""
    uncompared: int = 0
    """Finished answers that were not."""


def connect(url: str) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=8)
    return httpx.AsyncClient(base_url=url, timeout=TIMEOUT, limits=limits, trust_env=False)


async def whole(client: httpx.AsyncClient, request: Request) -> list[int]:
    """Token ids of an answer that comes in one piece."""
    response = await client.post(PATH, json=request)
    response.raise_for_status()
    tokens: list[int] = response.json()["choices"][0]["token_ids"]
    return tokens


async def pieces(client: httpx.AsyncClient, request: Request) -> AsyncGenerator[list[int], None]:
    """Token ids as they come; raises when the stream ends before the answer does."""
    async with client.stream("POST", PATH, json=request | {"stream": True}) as response:
        response.raise_for_status()
        async for line in response.aiter_lines():
            data = line.removeprefix("data: ")
            if data == "[DONE]":
                return
            if not data:
                continue
            told = json.loads(data)
            if "choices" not in told:
                raise httpx.RemoteProtocolError(f"the stream reports an error: {data[:200]}")
            yield told["choices"][0].get("token_ids") or []
    raise httpx.RemoteProtocolError("the stream ended without [DONE]")


async def answers(url: str, requests: Sequence[Request], at_once: int, tell: Callable[[], None]) -> list[list[int]]:
    """The answers to all ``requests``, in order; ``tell`` is called after each."""
    gate = asyncio.Semaphore(at_once)
    async with connect(url) as client:

        async def ask(request: Request) -> list[int]:
            async with gate:
                tokens = await whole(client, request)
                tell()
                return tokens

        return list(await asyncio.gather(*map(ask, requests)))


class Load:
    """Keeps ``clients`` clients busy with requests, whose ``known`` answers they compare with theirs."""

    def __init__(self, url: str, workload: Workload, known: Sequence[list[int]]) -> None:
        self.url = url
        self.requests = workload.requests
        self.compared = workload.compared
        self.faults = workload.faults
        self.known = known
        self.outcome = Outcome()
        self._behaviours = {
            self._ask_whole: 40,
            self._ask_stream: 25,
            self._abort_stream: 12,
            self._disconnect_while_waiting: 6,
            self._disconnect_within_the_message: 3,
            self._send_fault: 14,
        }
        """What a client does next, with its weight."""

    async def run(self, clients: int, seconds: float) -> None:
        """Ends when all that was sent before ``seconds`` were over is answered."""
        end = time.monotonic() + seconds
        async with connect(self.url) as client:
            await asyncio.gather(*(self._client(client, random.Random(number), end) for number in range(clients)))

    async def _client(self, client: httpx.AsyncClient, chooser: random.Random, end: float) -> None:
        behaviours, weights = list(self._behaviours), list(self._behaviours.values())
        while time.monotonic() < end:
            behave = chooser.choices(behaviours, weights)[0]
            try:
                await behave(client, chooser)
            except httpx.HTTPError as error:
                self.outcome.unexpected.append(f"{behave.__name__.strip('_')}: {type(error).__name__}: {error}")
                await asyncio.sleep(0.2)  # a server that is gone would be asked in a tight loop

    def _choose(self, chooser: random.Random) -> int:
        return chooser.randrange(len(self.requests))

    def _finish(self, index: int, tokens: list[int], how: str) -> None:
        self.outcome.counts[how] += 1
        self.outcome.uncompared += not self.compared[index]
        self._compare(index, tokens, self.known[index])

    def _compare(self, index: int, tokens: list[int], wanted: list[int]) -> None:
        if not self.compared[index]:
            return
        self.outcome.tokens += len(tokens)
        if tokens != wanted:
            self.outcome.differing.append(index)

    async def _ask_whole(self, client: httpx.AsyncClient, chooser: random.Random) -> None:
        index = self._choose(chooser)
        self._finish(index, await whole(client, self.requests[index]), "answered whole")

    async def _ask_stream(self, client: httpx.AsyncClient, chooser: random.Random) -> None:
        index = self._choose(chooser)
        tokens = [token async for piece in pieces(client, self.requests[index]) for token in piece]
        self._finish(index, tokens, "answered as a stream")

    async def _abort_stream(self, client: httpx.AsyncClient, chooser: random.Random) -> None:
        """Go away in the middle of an answer."""
        index = self._choose(chooser)
        wanted = self.known[index]
        enough = chooser.randint(1, max(1, len(wanted) // 2))
        tokens: list[int] = []
        async with contextlib.aclosing(pieces(client, self.requests[index])) as stream:
            async for piece in stream:
                tokens += piece
                if len(tokens) >= enough:
                    break
        self._compare(index, tokens, wanted[: len(tokens)])
        self.outcome.counts["aborted"] += 1

    async def _disconnect_while_waiting(self, client: httpx.AsyncClient, chooser: random.Random) -> None:
        """Close the connection before an answer of one piece is there."""
        index = self._choose(chooser)
        try:
            tokens = await asyncio.wait_for(whole(client, self.requests[index]), chooser.uniform(0.02, 1.0))
        except TimeoutError:
            self.outcome.counts["disconnected while waiting"] += 1
        else:
            self._finish(index, tokens, "answered whole")

    async def _disconnect_within_the_message(self, client: httpx.AsyncClient, chooser: random.Random) -> None:
        """Promise a body, send a part of it and close the socket."""
        body = json.dumps(self.requests[self._choose(chooser)]).encode()
        address = urlsplit(self.url)
        head = f"POST {PATH} HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        _, writer = await asyncio.open_connection(address.hostname, address.port)
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[: len(body) // 2])
        with contextlib.suppress(OSError):
            await writer.drain()
            writer.close()
            await writer.wait_closed()
        self.outcome.counts["disconnected within the message"] += 1

    async def _send_fault(self, client: httpx.AsyncClient, chooser: random.Random) -> None:
        fault = chooser.choice(self.faults)
        response = await send(client, fault)
        if response.status_code != fault.status:
            self.outcome.unexpected.append(
                f"{fault.name}: status {response.status_code} instead of {fault.status}: {response.text[:200]}"
            )
        else:
            self.outcome.refused[fault.name] += 1


async def send(client: httpx.AsyncClient, fault: Fault) -> Any:
    content = fault.body if isinstance(fault.body, bytes) else json.dumps(fault.body).encode()
    return await client.post(PATH, content=content, headers={"Content-Type": "application/json"})
