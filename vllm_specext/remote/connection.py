"""What carries frames between a client and a server: a WebSocket, or a link that a test makes."""

from typing import Protocol


class LinkLost(ConnectionError):  # noqa: N818
    """The other side cannot be reached any more by this connection."""


class Connection(Protocol):
    """Frames come whole and in the order in which they were sent, or not at all."""

    async def send(self, frame: bytes) -> None:
        """Raises ``LinkLost``."""

    async def receive(self) -> bytes:
        """Raises ``LinkLost``."""

    async def close(self) -> None: ...
