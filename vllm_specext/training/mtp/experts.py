"""The MLP of a module's layer that has experts, as transformers has it, and how files name its tensors.

``E`` experts of width ``I``, ``d`` hidden size.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

GATE_UP, DOWN = "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
"""All experts' matrices, as transformers has them: ``[E, 2 I, d]`` and ``[E, d, I]``."""


@dataclass(frozen=True)
class Experts:
    count: int
    chosen: int
    """To which a token is sent."""
    width: int
    together: bool
    """Whether files have ``GATE_UP`` and ``DOWN``, or each expert's matrices on their own."""
    config: Any = field(compare=False, repr=False)
    """The target's language model, as transformers has it."""

    def mlp(self) -> nn.Module:
        """``[B, L, d]`` to the same; the experts' numbers are whatever was in memory."""
        if self.config.model_type == "qwen3_next":
            from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextSparseMoeBlock

            return Qwen3NextSparseMoeBlock(self.config)
        from transformers.models.qwen3_5_moe.modeling_qwen3_5_moe import Qwen3_5MoeSparseMoeBlock

        return Qwen3_5MoeSparseMoeBlock(self.config)

    def kept(self, hidden_size: int) -> int:
        """Numbers that the backward pass needs of a token, beside those of an MLP as wide as the chosen ones: what
        each has read and made."""
        return self.chosen * 2 * (hidden_size + self.width)

    def idle(self, hidden_size: int) -> int:
        """Numbers that a token does not pass."""
        return (self.count - self.chosen) * 3 * self.width * hidden_size


def are_together(names: Iterable[str]) -> bool:
    return any(name.endswith(GATE_UP) for name in names)


def apart(tensors: Mapping[str, Tensor], layer: str) -> dict[str, Tensor]:
    """``tensors`` by names in files that have each expert's matrices on their own. Those of the module's layer begin
    with ``layer``."""
    made = dict(tensors)
    gate_up, down = made.pop(layer + GATE_UP), made.pop(layer + DOWN)
    for number, (both, last) in enumerate(zip(gate_up, down, strict=True)):
        matrices = zip(("gate_proj", "up_proj", "down_proj"), (*both.chunk(2), last), strict=True)
        made |= {f"{layer}mlp.experts.{number}.{name}.weight": matrix for name, matrix in matrices}
    return made


def joined(tensors: Mapping[str, Tensor], layer: str, count: int) -> dict[str, Tensor]:
    """What ``apart`` brings back, of ``count`` experts."""
    made = dict(tensors)

    def stacked(name: str) -> Tensor:
        return torch.stack([made.pop(f"{layer}mlp.experts.{number}.{name}.weight") for number in range(count)])

    gate_up = torch.cat((stacked("gate_proj"), stacked("up_proj")), dim=1)
    return made | {layer + GATE_UP: gate_up, layer + DOWN: stacked("down_proj")}
