"""What a server asks its engine for."""

from dataclasses import dataclass
from typing import Protocol

from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.protocol import Sampling
from vllm_specext.remote.rows import RowFormat


@dataclass(frozen=True)
class Outcome:
    tokens: list[int]
    """What the target says after the text: drafted tokens that it would have said too, and one more. At least one."""
    rows: bytes
    """Of the tokens from the asked one on to the last that the target has read: of all but the last of ``tokens``."""
    server_ms: float
    """From the question to the engine until its answer, with what it waited for others."""
    finish: str = ""
    """Why the answer ends with them: "stop" or "length"; the session's to say."""


class Verifier(Protocol):
    """One target. The answer to a text does not depend on how the text was put together, nor on what was drafted."""

    def for_user(self, key: str) -> "Verifier":
        """The same for one user, whose texts no other can tell are known."""

    async def verify(
        self, text: list[int], tree: Drafted, sampling: Sampling, form: RowFormat, first_row: int, extra: int
    ) -> Outcome:
        """Tokens after ``text``, given the ``tree`` under its last one, and ``extra`` more; rows in ``form`` from token
        ``first_row`` on.

        Raises ``ConfigurationError`` where the engine refuses that.
        """
