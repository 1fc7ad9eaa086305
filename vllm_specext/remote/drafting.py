"""What a client's drafter does."""

from typing import Protocol

from torch import Tensor

from vllm_specext.remote.drafted import Drafted
from vllm_specext.remote.protocol import Sampling


class Drafter(Protocol):
    async def draft(self, text: list[int], max_nodes: int) -> Drafted:
        """A tree after ``text``, of at most so many nodes."""

    async def say(self, text: list[int], sampling: Sampling) -> int:
        """The next token, without a server."""

    def take(self, first: int, keys: Tensor, values: Tensor) -> int:
        """Keep the rows ``[T, H, D]`` of the text's tokens from ``first`` on, in the place of what is kept of them; the
        number of tokens whose rows are kept then, from the text's first on."""
