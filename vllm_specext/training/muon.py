"""Muon on a CPU."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor


class Float32Muon(torch.optim.Muon):
    """``torch.optim.Muon`` with its defaults, which makes its steps orthogonal in float32. In bfloat16, as torch does
    it, a CPU without such arithmetic takes thirty times as long. All CPUs do it alike, so that a training does not
    depend on which it is. The state is torch's."""

    def __init__(self, matrices: Iterable[Tensor], lr: float, weight_decay: float, momentum: float) -> None:
        super().__init__(matrices, lr=lr, weight_decay=weight_decay, momentum=momentum)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is not None:
                    self._step(matrix, matrix.grad, group)

    def _step(self, matrix: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[matrix]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        kept = state["momentum_buffer"]
        kept.lerp_(gradient, 1 - group["momentum"])
        update = gradient.lerp(kept, group["momentum"])
        update = orthogonal(update.float(), group["ns_coefficients"], group["ns_steps"], group["eps"])
        matrix.mul_(1 - group["lr"] * group["weight_decay"])
        rows, columns = matrix.shape
        matrix.add_(update, alpha=-group["lr"] * max(1, rows / columns) ** 0.5)


def orthogonal(matrix: Tensor, coefficients: Sequence[float], steps: int, least: float) -> Tensor:
    """Nearly the orthogonal factor of ``matrix`` ``[m, n]``, by so many ``steps`` of Newton and Schulz's iteration with
    these three ``coefficients``. A norm below ``least`` counts as that."""
    linear, cubic, quintic = coefficients
    flat = matrix.T if len(matrix) > matrix.shape[1] else matrix
    flat = flat / flat.norm().clamp(min=least)
    for _ in range(steps):
        gram = flat @ flat.T
        flat = torch.addmm(flat, torch.addmm(gram, gram, gram, beta=cubic, alpha=quintic), flat, beta=linear)
    return flat.T if len(matrix) > matrix.shape[1] else flat
