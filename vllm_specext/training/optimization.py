"""Optimizers and learning-rate schedules of drafters' training."""

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import nn

from vllm_specext.training.muon import Float32Muon
from vllm_specext.training.own_head import OutputLayer
from vllm_specext.training.step import Progress

OptimizerName = Literal["adamw", "muon"]
"""``muon``: Muon for the matrices, but for tables of tokens, single rows and experts; AdamW for the rest."""


def make_optimizers(
    model: nn.Module, name: OptimizerName, rate: float, weight_decay: float, muon_factor: float
) -> list[torch.optim.Optimizer]:
    """AdamW at ``rate`` for what ``model`` trains; Muon, if asked for, at ``muon_factor`` times it for its matrices."""
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding | OutputLayer)}
    trained = [p for p in model.parameters() if p.requires_grad]
    matrices = [p for p in trained if p.ndim == 2 and len(p) > 1 and p not in tables] if name == "muon" else []
    chosen = set(matrices)
    others = [p for p in trained if p not in chosen]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.AdamW(others, lr=rate, betas=(0.9, 0.95), weight_decay=weight_decay)
    ]
    if matrices:
        optimizers.append(make_muon(matrices, rate * muon_factor, weight_decay))
    return optimizers


def make_muon(matrices: Sequence[nn.Parameter], rate: float, weight_decay: float) -> torch.optim.Muon:
    """For ``matrices`` that are all on one device."""
    muon = Float32Muon if matrices[0].device.type == "cpu" else torch.optim.Muon
    return muon(matrices, lr=rate, weight_decay=weight_decay, momentum=0.95)


def linear(warmup: int, end: int, floor: float = 0.0) -> Callable[[Progress], float]:
    """A schedule of a stage: warm-up to one, then a straight line that reaches ``floor`` at step ``end``, where it
    stays."""

    def factor(progress: Progress) -> float:
        step = progress.step - 1
        if step < warmup:
            return (step + 1) / warmup
        return floor + (1 - floor) * max(0.0, (end - step) / max(1, end - warmup))

    return factor
