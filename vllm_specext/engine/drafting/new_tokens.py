"""The newest tokens of all texts of a step on the host, for drafters that work there."""

import numpy as np
import torch
from torch import Tensor

from vllm_specext.engine.drafting.step import Step


class NewTokens:
    """Takes them in one copy, which waits for the device. Shapes: ``R`` requests of the step."""

    decided: np.ndarray
    """Places of the requests for which the step decided a token, ascending."""
    lengths: np.ndarray
    """Tokens of each text, the newest included, ``[R]``."""

    def __init__(self, step: Step, ids: Tensor, most: int) -> None:
        """``ids``: the texts by request slot, ``[S, max_model_len]``, on the device. ``most``: as many tokens as a step
        can add to a text."""
        self._ids, self._slots, self._most = ids, step.batch.idx_mapping_np, most
        lengths = step.lengths() + 1
        where = (lengths[:, None] - most + torch.arange(most, device=ids.device)).clamp(min=0, max=ids.shape[1] - 1)
        newest = ids[step.batch.idx_mapping[:, None], where]
        told = torch.cat((step.num_sampled[: step.requests, None], lengths[:, None], newest), dim=1).cpu().numpy()
        self.decided = np.flatnonzero(told[:, 0] > 0)
        self.lengths = told[:, 1]
        self._newest = told[:, 2:]

    def after(self, place: int, known: int) -> list[int]:
        """The tokens of the text in this place that follow its first ``known``. Another copy where a step alone cannot
        have added them."""
        length = int(self.lengths[place])
        new = length - known
        if new > self._most:
            late: list[int] = self._ids[int(self._slots[place]), known:length].cpu().tolist()
            return late
        newest: list[int] = self._newest[place, self._most - new :].tolist()
        return newest
