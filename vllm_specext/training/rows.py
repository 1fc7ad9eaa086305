"""Rows of training text as a drafter's training reads them: tokens, where it learns, and the target's features."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class FeatureRow(NamedTuple):
    """``T`` positions of one text, whatever they were read from."""

    token_ids: Tensor
    """``[T]`` int32 or int64."""
    loss_mask: Tensor
    """``[T]`` uint8 or int64: 1 at the tokens that the drafter shall learn to predict."""
    features: Tensor
    """``[T, d]``, in any floating-point type: the target's last hidden state of each position, after the final norm.
    The last are zeros where the target has sampled this token and never read it."""
    aux: Tensor | None = None
    """``[T, n · d]``: hidden states of ``n`` of the target's layers side by side, for EAGLE-3 and DFlash."""


class RowSource(Protocol):
    """Rows by number, read when they are needed."""

    @property
    def lengths(self) -> Sequence[int]:
        """Of every row, in tokens."""

    def order(self, epoch: int) -> Sequence[int]:
        """The numbers of all rows, each once, as they come in this epoch, which counts from 0. It is the same in every
        process and whenever it is asked for."""

    def read(self, rows: Sequence[int], epoch: int = 0) -> list[FeatureRow]:
        """These rows, which are needed in this ``epoch``. The same rows together are the same bits, whenever they are
        read, as far as the source says nothing else."""
