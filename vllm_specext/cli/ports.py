"""Ports that a server is to listen on, tried before it is loaded."""

import socket

from vllm_specext.errors import ConfigurationError

HIGHEST = 65535


def read_port(text: str, option: str = "--port") -> int:
    """Read the port that an ``option`` has."""
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= HIGHEST:
        raise ConfigurationError(f"{option} is {text!r}, but must be a number from 0 to {HIGHEST}.")
    return port


def check_free(host: str, port: int, given: str | None = None) -> None:
    """Listen on ``port`` of ``host`` for a moment, as the server will. An empty host is every address. ``given``: the
    option that named them, where it is not vLLM's."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            trial.bind((host, port))
        except OSError as error:
            where = given or (f"--host {host} --port {port}" if host else f"--port {port}")
            raise ConfigurationError(f"the server cannot listen on {where}: {error.strerror}.") from None
