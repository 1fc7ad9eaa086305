"""Optimisers and learning-rate schedules of drafters' training."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn

OptimizerName = Literal["adamw", "muon"]
"""``muon``: Muon for the matrices, AdamW for the rest."""


def make_optimizers(
    trained: Sequence[nn.Parameter], name: OptimizerName, rate: float, weight_decay: float, muon_factor: float
) -> list[torch.optim.Optimizer]:
    """AdamW at ``rate``; Muon, if asked for, at ``muon_factor`` times it."""
    matrices = [p for p in trained if p.ndim == 2] if name == "muon" else []
    others = [p for p in trained if p.ndim != 2 or name == "adamw"]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=weight_decay)
    ]
    if matrices:
        optimizers.append(torch.optim.Muon(matrices, lr=rate * muon_factor, weight_decay=weight_decay, momentum=0.95))
    return optimizers


def linear_schedule(
    optimizer: torch.optim.Optimizer, warmup: int, end: int, floor: float = 0.0
) -> torch.optim.lr_scheduler.LambdaLR:
    """Warm-up to one, then a straight line that reaches ``floor`` at step ``end``, where it stays."""

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return floor + (1 - floor) * max(0.0, (end - step) / max(1, end - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, factor)
