"""What a client tells while an answer grows."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Said:
    """Tokens of the answer, in their order."""

    ids: list[int]
    verified: bool
    """The target has said them. Else the drafter has, while there was no server."""


@dataclass(frozen=True)
class Retracted:
    """The last ``count`` tokens that were said without a server are not what the target says."""

    count: int


@dataclass
class Traffic:
    """Of an answer."""

    calls: int = 0
    """Trees that were sent."""
    bytes_up: int = 0
    bytes_down: int = 0
    verified: int = 0
    """Tokens that the target has said."""
    offline: int = 0
    """Tokens that it has not."""


@dataclass(frozen=True)
class Done:
    finish: str
    """"stop" or "length"; "offline" where the client has said all that it may say without a server."""
    exact: bool
    """All tokens are the target's, as if nothing had been drafted."""
    traffic: Traffic
