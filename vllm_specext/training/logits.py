"""How logits follow from features and a head: some targets cap them, or multiply them by a number."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Logits:
    """As vLLM's ``LogitsProcessor`` makes them of ``head @ feature``: the cap first, then the scale."""

    scale: float = 1.0
    soft_cap: float | None = None
    """The most that a logit before its scale is: ``soft_cap · tanh(x / soft_cap)``."""

    def of(self, features: Tensor, head: Tensor) -> Tensor:
        """``[N, V]`` float32, of ``features`` ``[N, d]`` and ``head`` ``[V, d]``, which gives the type that they are
        multiplied in."""
        logits = (features.to(head.dtype) @ head.T).float()
        if self.soft_cap is not None:
            logits = logits.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        return logits if self.scale == 1 else logits.mul_(self.scale)

    def slope(self, logits: Tensor) -> Tensor | float:
        """What a gradient of ``logits`` has to be multiplied by to be one of ``head @ feature``."""
        if self.soft_cap is None:
            return self.scale
        return (logits / (self.scale * self.soft_cap)).square_().neg_().add_(1).mul_(self.scale)


PLAIN = Logits()


@dataclass(frozen=True)
class Scored:
    """How a target makes its logits, and how a server makes those of a drafter that has the target's head."""

    target: Logits = PLAIN
    drafter: Logits = PLAIN


PLAINLY_SCORED = Scored()


def logits_of(config: Mapping[str, Any]) -> Logits:
    """Of the language model with this configuration."""
    scale = float(config.get("logit_scale") or 1)
    if scaling := config.get("logits_scaling"):
        # HyperCLOVA X multiplies by what Granite divides by.
        scale = scale * scaling if config.get("model_type") == "hyperclovax" else scale / scaling
    if str(config.get("model_type")).startswith("minicpm") and config.get("dim_model_base"):
        scale *= config["dim_model_base"] / config["hidden_size"]
    cap = config.get("final_logit_softcapping")
    return Logits(scale, float(cap) if cap else None)
