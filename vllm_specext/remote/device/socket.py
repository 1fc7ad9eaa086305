"""A client's connection: a WebSocket."""

import ipaddress
from collections.abc import Awaitable, Callable
from urllib.parse import urlsplit

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from vllm_specext.errors import ConfigurationError
from vllm_specext.remote.connection import Connection, LinkLost
from vllm_specext.remote.exchange import RefusedError

ROUTE = "/v1/specext/drafts"
OPEN_SECONDS = 10.0
MAX_ANSWER = 64 << 20
"""Bytes of a server's frame: 256 rows of a large model's drafter."""


class Socket:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection

    async def send(self, frame: bytes) -> None:
        try:
            await self._connection.send(frame)
        except ConnectionClosed as error:
            raise LinkLost("closed") from error

    async def receive(self) -> bytes:
        try:
            return await self._connection.recv(decode=False)
        except ConnectionClosed as error:
            raise LinkLost("closed") from error

    async def close(self) -> None:
        await self._connection.close()


def address(server: str, insecure: bool) -> str:
    """The address of a server's WebSocket. Raises ``ConfigurationError`` where what is said would cross a network in
    the clear, unless that is wanted."""
    parts = urlsplit(server)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ConfigurationError(f"--server is {server!r}; expected ws://HOST:PORT or wss://HOST:PORT.")
    if parts.scheme == "ws" and not insecure and not _is_loopback(parts.hostname):
        raise ConfigurationError(
            f"--server is {server!r}, which would send the text in the clear: use wss://, or --insecure."
        )
    return server.rstrip("/") + ROUTE


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def connecting(url: str, key: str | None) -> Callable[[], Awaitable[Connection]]:
    """Makes connections to the server at ``url``, with its API ``key`` where it wants one."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    async def connected() -> Connection:
        how = {"open_timeout": OPEN_SECONDS, "close_timeout": 1.0, "max_size": MAX_ANSWER, "compression": None}
        try:
            return Socket(await connect(url, additional_headers=headers, **how))  # type: ignore[arg-type]
        except InvalidStatus as error:
            status = error.response.status_code
            if status in (401, 403, 404):
                raise RefusedError(_why(status)) from None
            raise LinkLost("the server is not ready.") from error
        except (OSError, TimeoutError, WebSocketException) as error:
            raise LinkLost("the server cannot be reached.") from error

    return connected


def _why(status: int) -> str:
    if status == 401:
        return "the server wants another API key (401)."
    return f"the server verifies nothing of clients ({status}); it needs client_drafts in its --speculative-config."
