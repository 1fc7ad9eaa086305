"""An output layer of a drafter's own, which is trained with it."""

from typing import NamedTuple

from torch import Tensor, nn


class OutputLayer(nn.Linear):
    """A row for each token, so that optimizers take it for a table of tokens and not for a matrix."""


class OwnHead(NamedTuple):
    """It scores ``V'`` of the target's ``V`` tokens."""

    weight: Tensor
    """``[V', d]``"""
    tokens: Tensor
    """The target's token of each row, ``[V']`` int64."""
