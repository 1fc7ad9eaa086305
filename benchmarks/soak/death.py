"""A process of the server is killed while it answers: what the clients and the next one see."""

import asyncio
import signal
import time
from collections.abc import Sequence
from typing import Any

import httpx
import psutil

from benchmarks.soak.clients import connect, pieces, whole
from benchmarks.soak.watch import processes
from benchmarks.soak.workload import Request
from vllm_specext.measure.server import Server

PATIENCE = 60.0
"""Seconds within which every client must know, and the server must have ended."""


def find(server: Server, name: str) -> psutil.Process:
    """The server's process whose title vLLM has made ``VLLM::name...``."""
    for process in processes(server):
        if f"VLLM::{name}" in " ".join(process.cmdline()):
            return process
    raise LookupError(f"the server has no process named VLLM::{name}")


async def kill(server: Server, name: str, requests: Sequence[Request], known: Sequence[list[int]]) -> dict[str, Any]:
    """Kill the process ``name`` when every one of the ``requests``, streamed at once, has begun to be answered."""
    begun = [asyncio.Event() for _ in requests]
    received: list[list[int]] = [[] for _ in requests]
    async with connect(server.url) as client:

        async def stream(number: int) -> str:
            try:
                async for piece in pieces(client, requests[number]):
                    received[number] += piece
                    begun[number].set()
            except httpx.HTTPError:
                return "failed"
            finally:
                begun[number].set()
            return "finished"

        streams = [asyncio.create_task(stream(number)) for number in range(len(requests))]
        await asyncio.gather(*(event.wait() for event in begun))
        find(server, name).send_signal(signal.SIGKILL)
        killed = time.monotonic()
        done, hanging = await asyncio.wait(streams, timeout=PATIENCE)
        seconds = time.monotonic() - killed
        for task in hanging:
            task.cancel()
        ends = [task.result() for task in done]
        next_request = await _ask_again(client, requests[0])
    status = await asyncio.to_thread(_wait_for_end, server)
    wrong = [
        tokens != right[: len(tokens)] or (task in done and task.result() == "finished" and tokens != right)
        for task, tokens, right in zip(streams, received, known, strict=True)
    ]
    return {
        "killed": name,
        "streams": len(requests),
        "finished": ends.count("finished"),
        "failed": ends.count("failed"),
        "hanging": len(hanging),
        "wrong": sum(wrong),
        "tokens_before": sum(map(len, received)),
        "seconds_until_clients_knew": round(seconds, 2),
        "next_request": next_request,
        "server_ended_with_status": status,
        "seconds_until_server_ended": round(time.monotonic() - killed, 1),
    }


async def _ask_again(client: httpx.AsyncClient, request: Request) -> str:
    try:
        await asyncio.wait_for(whole(client, request), PATIENCE)
    except httpx.HTTPStatusError as error:
        return f"status {error.response.status_code}"
    except httpx.HTTPError:
        return "no connection"
    except TimeoutError:
        return "no answer"
    return "answered"


def _wait_for_end(server: Server) -> int | None:
    """The exit status; ``None`` for a server that still runs."""
    assert server.process is not None
    end = time.monotonic() + PATIENCE
    while (status := server.process.poll()) is None and time.monotonic() < end:
        time.sleep(0.2)
    return status
