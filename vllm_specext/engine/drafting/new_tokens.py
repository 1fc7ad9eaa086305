"""The newest tokens of all texts of a step on the host, for drafters that work there.

Shapes: ``R`` requests of the step, ``S`` request slots.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vllm_specext.engine.drafting.step import Step


@dataclass(frozen=True)
class NewTokens:
    decided: np.ndarray
    """Places of the requests for which the step decided a token, ascending."""
    lengths: np.ndarray
    """Tokens of each text, the newest included, ``[R]``."""
    _slots: np.ndarray
    _ids: Tensor
    _newest: np.ndarray | None
    """The last tokens of each text, ``[R, most]``; ``None`` where the texts are on the host already."""

    def after(self, place: int, known: int) -> list[int]:
        """The tokens of the text in this place that follow its first ``known``. Another copy where a step alone cannot
        have added them."""
        length = int(self.lengths[place])
        if self._newest is None or length - known > self._newest.shape[1]:
            late: list[int] = self._ids[int(self._slots[place]), known:length].cpu().tolist()
            return late
        newest: list[int] = self._newest[place, self._newest.shape[1] - (length - known) :].tolist()
        return newest


def new_tokens(step: Step, ids: Tensor, most: int) -> NewTokens:
    """``ids``: the texts by request slot, ``[S, max_model_len]``, on the device. ``most``: as many tokens as a step can
    add to a text."""
    return read_in_place(step, ids) if ids.device.type == "cpu" else copied(step, ids, most)


def copied(step: Step, ids: Tensor, most: int) -> NewTokens:
    """The same by one copy, which waits for the device."""
    lengths = step.lengths() + 1
    where = (lengths[:, None] - most + torch.arange(most, device=ids.device)).clamp(min=0, max=ids.shape[1] - 1)
    newest = ids[step.batch.idx_mapping[:, None], where]
    told = torch.cat((step.num_sampled[: step.requests, None], lengths[:, None], newest), dim=1).cpu().numpy()
    return NewTokens(np.flatnonzero(told[:, 0] > 0), told[:, 1], step.batch.idx_mapping_np, ids, told[:, 2:])


def read_in_place(step: Step, ids: Tensor) -> NewTokens:
    """The same on a CPU, where nothing has to be copied."""
    sampled, rejected, tokens = (
        tensor.numpy()[: step.requests] for tensor in (step.num_sampled, step.num_rejected, step.batch.seq_lens)
    )
    return NewTokens(np.flatnonzero(sampled > 0), tokens - rejected + 1, step.batch.idx_mapping_np, ids, None)
