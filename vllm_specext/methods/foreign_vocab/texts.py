"""The state of requests whose texts a drafter reads in tokens of its own.

Shapes: ``A`` requests that are drafted for, ``d`` hidden size.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vllm_specext.methods.foreign_vocab.text.bridge import Bridge


@dataclass
class Text:
    """A request's text, as far as it was read."""

    request: str
    bridge: Bridge
    known: int = 0
    """Number of tokens of the target's text that the bridge has."""
    cached: int = 0
    """Number of tokens of the drafter's text whose keys and values are in its cache."""

    def grow(self, ids: list[int]) -> None:
        """Add ``ids``, the target's tokens that follow."""
        self.cached = min(self.cached, self.bridge.commit(ids))
        self.known += len(ids)


@dataclass(frozen=True)
class Active:
    """The requests that are drafted for in this step; the drafter has read their texts."""

    places: np.ndarray
    """``[A]``: places of the requests in the batch."""
    slots: Tensor
    """``[A]``: request slots."""
    texts: list[Text]
    ends_np: np.ndarray
    """``[A]``: numbers of tokens of the drafter's texts."""
    ends: Tensor
    """``ends_np`` on the device."""
    target_ends: Tensor
    """``[A]``: numbers of tokens of the target's texts."""
    hidden: Tensor
    """``[A, d]``: the drafter's hidden states at the last tokens of its texts."""
