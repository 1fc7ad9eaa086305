"""Batches of drafters that read the target's features: of packed rows, what each input is and what it shall give."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.training.generators import generator
from vllm_specext.training.packed_attention import Layout
from vllm_specext.training.packs import Packed, PackedBatches
from vllm_specext.training.run import Run
from vllm_specext.training.step import Progress, Share

B = TypeVar("B")

NOISE = 0.2 * 512
"""Width of the uniform noise on a training row's features, divided by the row's length (EAGLE's augmentation)."""

MaskPosition = Literal["token", "code"]
"""Whose mask decides whether an output counts: the predicted token's, ``s + 2``, or that of the feature's position
``s``, as in the code that trained the released GRIFFIN checkpoints, which never learns an answer's first two tokens."""


@dataclass(frozen=True)
class Batch:
    """Inputs ``s``, which are tokens ``s + 1`` and features ``s``, and the features ``s + 1`` to reproduce; zeros where
    a row has none. ``B`` packs of ``L`` slots."""

    layout: Layout
    input_ids: Tensor
    """``[B, L]``: tokens ``s + 1``."""
    next_ids: Tensor
    """``[B, L]``: tokens ``s + 2``, which outputs predict."""
    features: Tensor
    """``[B, L, d]``, to read: with noise, if there is any."""
    target_features: Tensor
    """``[B, L, d]``: features ``s + 1``, the inputs of the head from which token ``s + 2`` follows."""
    counted: Tensor
    """``[B, L]`` bool: outputs that are in the loss."""
    aux: Tensor | None = None
    """``[B, L, n · d]``: further hidden states of tokens ``s``."""


def make_batch(packed: Packed, mask_position: MaskPosition = "token") -> Batch:
    """A position after which there is no feature to reproduce never counts: a row's last, and, where the target has not
    read the row's last token, the one before."""
    later = packed.layout.later
    input_ids = _next(packed.token_ids, later)
    mask = packed.loss_mask
    if mask_position == "token":
        counted = _next(_next(mask, later), later)
    else:
        counted = mask & _next(packed.features.any(dim=-1), later)
    return Batch(
        packed.layout,
        input_ids,
        _next(input_ids, later),
        packed.features,
        _next(packed.features, later),
        counted,
        packed.aux,
    )


def noise(packed: Packed, amplitude: float, seed: int) -> Tensor:
    """``[B, L, d]``: uniform noise of ``amplitude / (2 · length)`` on every row's features. A pack's follows from its
    number, whichever process has it."""
    shape = packed.features.shape[1:]
    uniform = [torch.rand(shape, generator=generator(seed, number)) for number in packed.numbers]
    scale = (amplitude / packed.lengths)[..., None]
    return (torch.stack(uniform).to(packed.features.device) - 0.5) * scale


class MadeBatches(Generic[B]):
    """Batches that ``make`` makes of packs.

    A thread makes the next ``ahead`` batches while those before are in use, such as all of an optimizer step. That is
    for devices that would wait for the host: a thread computes with as many threads of its own as torch likes, which
    may change the last bits.
    """

    def __init__(self, packs: PackedBatches, make: Callable[[Packed], B], *, ahead: int = 0) -> None:
        self.packs, self.make, self.ahead = packs, make, ahead
        self.thread = ThreadPoolExecutor(1) if ahead else None
        self.made: deque[tuple[tuple[int, ...], Future[B]]] = deque()
        """The packs that the thread works on, or has made, in order."""

    def next(self, progress: Progress, share: Share) -> B:
        numbers = self.packs.take(share)
        if self.thread is None:
            return self._make(numbers)
        if not self.made or self.made[0][0] != numbers:
            self.made = deque([(numbers, self.thread.submit(self._make, numbers))])
        while len(self.made) <= self.ahead:
            following = tuple(number + self.packs.size for number in self.made[-1][0])
            self.made.append((following, self.thread.submit(self._make, following)))
        return self.made.popleft()[1].result()

    def _make(self, numbers: tuple[int, ...]) -> B:
        return self.make(self.packs.make(numbers))

    def state_dict(self) -> dict[str, Any]:
        return self.packs.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.packs.load_state_dict(state)


class FeatureBatches(MadeBatches[Batch]):
    """With noise on the features that are read, if any."""

    def __init__(
        self,
        packs: PackedBatches,
        mask_position: MaskPosition = "token",
        amplitude: float = 0.0,
        seed: int = 0,
        *,
        ahead: int = 0,
    ) -> None:
        super().__init__(packs, partial(_noisy, mask_position, amplitude, seed), ahead=ahead)


def _noisy(mask_position: MaskPosition, amplitude: float, seed: int, packed: Packed) -> Batch:
    batch = make_batch(packed, mask_position)
    if amplitude:
        # Padding is a row of its own, which nothing sees.
        batch = replace(batch, features=batch.features + noise(packed, amplitude, seed))
    return batch


def made_ahead(device: torch.device | str, run: Run | None) -> int:
    """How many batches are made in advance for a training on ``device``: those of a step, where it is a GPU."""
    return (run or Run()).accumulate if torch.device(device).type == "cuda" else 0


def _next(x: Tensor, later: Tensor) -> Tensor:
    """Position ``s + 1`` of the row at ``s``; zeros at its end."""
    shifted = F.pad(x[:, 1:], (*(0, 0) * (x.ndim - 2), 0, 1))
    return shifted * (later > 0).view(*later.shape, *[1] * (x.ndim - 2)).to(x.dtype)
