"""What is kept of requests for a drafter that reads their texts in tokens of its own.

Shapes: ``A`` requests that are drafted for, ``d`` hidden size.
"""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vllm_specext.methods.foreign_vocab.text.bridge import Bridge


@dataclass
class Text:
    """A request's, as far as it was read."""

    request: str
    bridge: Bridge
    known: int = 0
    """Tokens of the target's text that the bridge has."""
    cached: int = 0
    """Tokens of the drafter's text whose keys and values are in its cache."""

    def grow(self, ids: list[int]) -> None:
        """By these tokens of the target."""
        self.cached = min(self.cached, self.bridge.commit(ids))
        self.known += len(ids)


@dataclass(frozen=True)
class Active:
    """The requests that are drafted for in this step; the drafter has read their texts."""

    places: np.ndarray
    """``[A]``, in the batch."""
    slots: Tensor
    """``[A]``"""
    texts: list[Text]
    ends_np: np.ndarray
    """``[A]`` tokens of the drafter's text."""
    ends: Tensor
    """The same on the device."""
    target_ends: Tensor
    """``[A]`` tokens of the target's text."""
    hidden: Tensor
    """``[A, d]``: what the drafter made of its last token."""
