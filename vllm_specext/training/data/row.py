"""A prepared row: tokens, which of them are in the loss, and the name of what it was made from."""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

KEY = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}-\d{1,6}")
"""``GROUP-CONVERSATION-TURN``: hashes of the first user message and of all that was read, and the turn that it ends
with."""


@dataclass(frozen=True, eq=False)
class Row:
    """A text of ``T`` tokens.

    Attributes:
        token_ids: ``[T]`` int32.
        loss_mask: ``[T]`` bool: true at the tokens that a drafter shall learn to predict. It belongs to the token
            itself, not to the position before it.
        key: as `KEY`. Rows with the same group never stand on both sides of the split.
    """

    token_ids: np.ndarray
    loss_mask: np.ndarray
    key: str

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def group(self) -> str:
        """The hash of the first user message."""
        return self.key.partition("-")[0]

    @property
    def loss_tokens(self) -> int:
        return int(self.loss_mask.sum())

    def first(self, length: int) -> "Row":
        """The row without all that comes after its first ``length`` tokens."""
        return Row(self.token_ids[:length], self.loss_mask[:length], self.key)


def make_row(token_ids: Sequence[int], loss_mask: Sequence[bool], key: str) -> Row:
    return Row(np.array(token_ids, dtype=np.int32), np.array(loss_mask, dtype=bool), key)


def short_hash(content: bytes) -> str:
    """64 bits of a hash, as a key has them."""
    return hashlib.sha256(content).hexdigest()[:16]
