"""Rows of prepared text for a method that reads nothing of the target but what it runs itself."""

from collections.abc import Iterable, Sequence

import torch

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.row import Row
from vllm_specext.training.generators import generator
from vllm_specext.training.rows import FeatureRow


class TextRows:
    """A ``RowSource`` whose features have no numbers. Raises ``ConfigurationError`` where there are no ``rows``."""

    def __init__(self, rows: Iterable[Row], seed: int) -> None:
        self.rows = [text_row(row.token_ids.tolist(), row.loss_mask.tolist()) for row in rows]
        self.seed = seed
        if not self.rows:
            raise ConfigurationError("the data have no rows of text; expected 1 or more.")

    @property
    def lengths(self) -> list[int]:
        return [len(row.token_ids) for row in self.rows]

    def order(self, epoch: int) -> list[int]:
        found: list[int] = torch.randperm(len(self.rows), generator=generator(self.seed, epoch)).tolist()
        return found

    def read(self, rows: Sequence[int], epoch: int = 0) -> list[FeatureRow]:
        return [self.rows[row] for row in rows]


def text_row(token_ids: Sequence[int], loss_mask: Sequence[bool]) -> FeatureRow:
    return FeatureRow(torch.tensor(token_ids), torch.tensor(loss_mask), torch.empty(len(token_ids), 0))
