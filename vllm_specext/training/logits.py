"""How logits follow from features and a head: some targets cap them, or multiply them by a number."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.errors import ConfigurationError


@dataclass(frozen=True)
class LastNorm:
    """The target's norm before its head."""

    weight: Tensor
    """``[d]``"""
    eps: float

    def of(self, features: Tensor) -> Tensor:
        """``features`` ``[..., d]`` in float32, normed."""
        return F.rms_norm(features.float(), self.weight.shape, self.weight, self.eps)


@dataclass(frozen=True, kw_only=True)
class Logits:
    """As vLLM's ``LogitsProcessor`` makes them of ``head @ feature``: the cap first, then the scale."""

    scale: float = 1.0
    soft_cap: float | None = None
    """The most that a logit before its scale is: ``soft_cap · tanh(x / soft_cap)``."""
    norm: LastNorm | None = field(default=None, compare=False)
    """What features go through before the head, where vLLM's class gives them without."""

    def to(self, device: torch.device) -> "Logits":
        """The same, for features that are there."""
        norm = self.norm and replace(self.norm, weight=self.norm.weight.to(device))
        return replace(self, norm=norm)

    def without_norm(self) -> "Logits":
        """The same for features that are read as they are, as a drafter's."""
        return replace(self, norm=None)

    def of(self, features: Tensor, head: Tensor) -> Tensor:
        """``[N, V]`` float32, of ``features`` ``[N, d]`` and ``head`` ``[V, d]``, which gives the type that they are
        multiplied in."""
        read = features if self.norm is None else self.norm.of(features)
        logits = (read.to(head.dtype) @ head.T).float()
        if self.soft_cap is not None:
            logits = logits.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        return logits if self.scale == 1 else logits.mul_(self.scale)

    def slope(self, logits: Tensor) -> Tensor | float:
        """What a gradient of ``logits`` has to be multiplied by to be one of ``head @ feature``."""
        if self.soft_cap is None:
            return self.scale
        return (logits / (self.scale * self.soft_cap)).square_().neg_().add_(1).mul_(self.scale)


PLAIN = Logits()
OTHERWISE = {"output_multiplier": (None, 1, 1.0), "use_mup": (None, False)}
"""Keys of Muse Glimmer and TeleFLM, whose classes multiply before they cap, or by what several keys make, with the
values that change nothing."""


@dataclass(frozen=True)
class Scored:
    """How a target makes its logits, and how a server makes those of a drafter that has the target's head."""

    target: Logits = PLAIN
    drafter: Logits = PLAIN

    def __post_init__(self) -> None:
        if self.drafter.norm is not None:
            raise ValueError("the drafter's features would go through a norm; its gradient knows none")


PLAINLY_SCORED = Scored()


def logits_of(config: Mapping[str, Any]) -> Logits:
    """Of the language model with this configuration, of what vLLM's class gives as its last hidden state: MiniCPM's has
    been divided already.

    Raises ``ConfigurationError`` for one that makes its logits otherwise.
    """
    for key, plain in OTHERWISE.items():
        if config.get(key) not in plain:
            raise ConfigurationError(
                f"the target's config.json: {key} is {config[key]!r}, so that its logits are made in a way that no "
                "training here knows; expected none."
            )
    scale = _number(config, "logit_scale") or 1.0
    if scaling := _number(config, "logits_scaling"):
        # HyperCLOVA X multiplies by what Granite divides by.
        scale = scale * scaling if config.get("model_type") == "hyperclovax" else scale / scaling
    return Logits(scale=scale, soft_cap=_number(config, "final_logit_softcapping"))


def _number(config: Mapping[str, Any], key: str) -> float | None:
    value = config.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
        raise ConfigurationError(f"the target's config.json: {key} is {value!r}; expected a number above 0.")
    return value
