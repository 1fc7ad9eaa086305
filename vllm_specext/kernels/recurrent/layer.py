"""What layers with a recurrent state hold, whatever the rule is by which it goes on.

A layer keeps for each request the last inputs of a short convolution, and its state: one matrix for each head. Shapes:
``C`` channels of the convolution, ``W`` taps of it, ``H`` heads.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RecurrentLayer:
    """Weights of a layer, and where it keeps the states of requests, by state slot ``S``."""

    conv_weight: Tensor
    """``[C, W]``; the last tap is of the row itself."""
    conv_bias: Tensor | None = None
    """``[C]``."""
    decay: Tensor
    """What the heads' decay is computed from, ``[H]``."""
    step_bias: Tensor
    """``[H]``: vLLM's ``dt_bias``."""
    conv_states: Tensor
    """The last inputs of the convolution, oldest first, ``[S, C, W - 1]``."""
    states: Tensor
    """``[S, H, ...]``."""

    @property
    def heads(self) -> int:
        return self.states.shape[1]

    @property
    def taps(self) -> int:
        return self.conv_weight.shape[1]

    @property
    def channels(self) -> int:
        return self.conv_weight.shape[0]

    @property
    def bias_argument(self) -> Tensor:
        """The bias; where there is none, what a kernel that does not read it may be given."""
        return self.conv_weight if self.conv_bias is None else self.conv_bias
