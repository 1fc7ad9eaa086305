"""What a training asks of the method whose drafter it trains, so that none of the stages knows which it is."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vllm_specext.training.pipeline.target import TargetModel
from vllm_specext.training.recipes.staged import StagedKeys
from vllm_specext.training.rows import FeatureRow, RowSource
from vllm_specext.training.run import Run

Draft = Callable[[Tensor, Tensor, int], Tensor]
"""Greedy chains ``[1, L, length]`` after each of the token ids ``[1, L]``, which are paired with what the drafter reads
of the position before, ``[1, L, width]`` float32. Tensors may be on any device."""


@dataclass(frozen=True)
class Sizes:
    """What a training takes."""

    trained: int
    """Parameters that are trained."""
    kept: int
    """Outputs of matrices and norms, for each token and pass, that the backward pass needs."""
    frozen: int
    """Bytes of what is in memory and is not trained."""
    batch: int
    """Bytes of what is made of the target for each token of a step's packs."""


class Drafter(Protocol):
    """A drafter on a device, with what it shares with the target."""

    @property
    def model(self) -> nn.Module: ...

    def draft(self, token_ids: Tensor, states: Tensor, length: int) -> Tensor:
        """A `Draft`."""

    def train(self, rows: RowSource, recipe: Any, steps: tuple[int, ...], processes: int, out: Path, run: Run) -> None:
        """Train on ``rows`` in so many ``steps`` of each stage, by the keys of the method's ``recipe``, and write the
        drafter to ``out`` in float32, with its ``training.json``. ``processes`` compute a pack each at a time."""


class TrainedMethod(Protocol):
    """A method's part of a training. ``ConfigurationError`` says what is wrong with a target or with files."""

    @property
    def title(self) -> str:
        """What people call it."""

    @property
    def serves(self) -> str:
        """The method that serves the drafter, of ``registry.METHODS``."""

    @property
    def captured(self) -> str | None:
        """What is kept of the target for every token, in words. ``None``: nothing, and the target runs in the
        training."""

    @property
    def frozen(self) -> str:
        """What of the target is in memory in the training, in words."""

    def layers(self, target: TargetModel) -> tuple[int, ...] | None:
        """Layers of the target whose inputs are kept beside its last hidden state, if any are."""

    def sizes(self, target: TargetModel, recipe: Any) -> Sizes:
        """Of the training of a new drafter."""

    def operations(self, target: TargetModel, recipe: Any) -> tuple[float, ...]:
        """Of each stage, for a token in the loss. Attention's scores are left out."""

    def packs(self, rows: RowSource, recipe: Any) -> int:
        """The packs that ``rows`` make."""

    def check_new(self, target: TargetModel, *, complete: bool) -> None:
        """Refuse a target for which no drafter can be begun without ``--init``. ``complete``: whether all of its files
        are there; otherwise those that are have to do."""

    def check_init(self, folder: Path, target: TargetModel) -> None:
        """Refuse a drafter that the training cannot begin with."""

    def kept(self, folder: Path, target: TargetModel) -> dict[str, Any]:
        """The recipe's keys for how a new drafter is built, as this one is, which stays as it is."""

    def begin(self, target: TargetModel, recipe: Any, init: Path | None, device: torch.device) -> Drafter:
        """The drafter before its first step: a new one, or that of ``init``, with the widths that it has."""

    def read(self, folder: Path, target: TargetModel) -> nn.Module:
        """The model alone of a drafter that was trained or exported, in float32."""

    def load(self, folder: Path, target: TargetModel, device: torch.device, *, bfloat16: bool = False) -> Drafter:
        """The same, to draft with. With ``bfloat16`` a target that runs beside it is in that type."""

    def export(self, model: nn.Module, folder: Path) -> None:
        """Write ``model``, a drafter's, as it is served, in bfloat16."""

    def states(self, row: FeatureRow) -> Tensor:
        """What the drafter reads of a row's positions, ``[T, width]``."""


def warmup_steps(keys: StagedKeys, steps: tuple[int, ...]) -> int:
    """Of each stage, of which the shortest may be short."""
    return keys.warmup_steps if keys.schedule_steps else min(keys.warmup_steps, min(steps) // 10)
