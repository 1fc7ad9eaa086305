"""Plain decoding of recurrent layers row by row, in float64, and layers of random weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from vllm_specext.kernels.gated_delta import GATED_DELTA_RULE, GatedDeltaLayer
from vllm_specext.kernels.recurrent import RecurrentLayer, StateRule
from vllm_specext.kernels.state_space import STATE_SPACE_RULE, StateSpaceLayer

Decoded = tuple[Tensor, Tensor, Tensor]


@dataclass(frozen=True)
class Kind:
    rule: StateRule
    gates: int
    make: Callable[..., Any]
    """``make(dtype, slots, **shape)``, a layer whose tensors lie as vLLM's do on a GPU."""
    step: Callable[[Any, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    """``step(layer, row, gates, state)``: what a ``row`` ``[C]`` after the convolution gets, and the state after it."""
    shapes: dict[str, dict[str, Any]]

    def decoded(
        self, mixed: Tensor, gates: Tensor, layer: RecurrentLayer, slot: int, path: Sequence[int]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Row by row along ``path``: what the last row gets, the state after it, and the last inputs."""
        state, last = layer.states[slot].double(), layer.conv_states[slot].double()
        result = torch.empty(0)
        for row in path:
            inputs = torch.cat((last, mixed[row, :, None].double()), dim=1)
            last = inputs[:, 1:]
            total = (inputs * layer.conv_weight.double()).sum(dim=1)
            total += 0 if layer.conv_bias is None else layer.conv_bias.double()
            result, state = self.step(layer, F.silu(total).to(mixed.dtype).double(), gates[row].double(), state)
        return result, state, last


def convolution(channels: int, taps: int, dtype: torch.dtype, slots: int) -> dict[str, Tensor]:
    """Inputs lie by places."""
    states = torch.randn(slots, taps - 1, channels).to(dtype).transpose(1, 2)
    return {"conv_weight": (torch.randn(channels, taps) / 2).to(dtype), "conv_states": states}


def apart(slots: int, *shape: int) -> Tensor:
    """States ``[slots, *shape]`` with more between the slots."""
    size = torch.Size(shape).numel()
    return torch.randn(slots, size + 3)[:, :-3].unflatten(1, shape)


def gated_delta(
    dtype: torch.dtype, slots: int, key_heads: int, heads: int, keys: int, values: int, taps: int = 4
) -> GatedDeltaLayer:
    return GatedDeltaLayer(
        **convolution(2 * key_heads * keys + heads * values, taps, dtype, slots),
        decay=torch.rand(heads) * 3 - 3,
        step_bias=torch.randn(heads),
        states=apart(slots, heads, values, keys).transpose(2, 3),
        key_heads=key_heads,
    )


def step_by_gated_delta(layer: GatedDeltaLayer, row: Tensor, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    group, (a, b) = layer.heads // layer.key_heads, gates.chunk(2)
    queries, keys, values = layer.split(row)
    results, states = [], []
    for head in range(layer.heads):
        query, key = (each[head // group] for each in (queries, keys))
        query, key = (each / (each.square().sum() + 1e-6).sqrt() for each in (query, key))
        step = F.softplus(a[head] + layer.step_bias[head].double())
        left = state[head] * (-layer.decay[head].double().exp() * step).exp()
        states.append(left + torch.outer(key, b[head].sigmoid() * (values[head] - left.T @ key)))
        results.append(states[-1].T @ query * len(key) ** -0.5)
    return torch.stack(results), torch.stack(states)


def state_space(
    dtype: torch.dtype, slots: int, groups: int, heads: int, keys: int, values: int, taps: int = 4, bias: bool = True
) -> StateSpaceLayer:
    channels = heads * values + 2 * groups * keys
    return StateSpaceLayer(
        **convolution(channels, taps, dtype, slots),
        conv_bias=torch.randn(channels).to(dtype) if bias else None,
        decay=-torch.rand(heads) * 3,
        step_bias=torch.randn(heads).to(dtype),
        states=apart(slots, heads, values, keys),
        skip=torch.randn(heads).to(dtype),
        groups=groups,
    )


def step_by_state_space(layer: StateSpaceLayer, row: Tensor, gates: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    values, inward, outward = layer.split(row)
    results, states = [], []
    for head in range(layer.heads):
        group = head // (layer.heads // layer.groups)
        step = F.softplus(gates[head] + layer.step_bias[head].double())
        left = state[head] * (step * layer.decay[head].double()).exp()
        states.append(left + step * torch.outer(values[head], inward[group]))
        results.append(states[-1] @ outward[group] + layer.skip[head].double() * values[head])
    return torch.stack(results), torch.stack(states)


KINDS = {
    "delta": Kind(
        GATED_DELTA_RULE,
        2,
        gated_delta,
        step_by_gated_delta,
        {
            "alike": {"key_heads": 2, "heads": 2, "keys": 16, "values": 16},
            "grouped": {"key_heads": 2, "heads": 6, "keys": 24, "values": 40},
            "wide": {"key_heads": 1, "heads": 3, "keys": 32, "values": 72, "taps": 2},
        },
    ),
    "space": Kind(
        STATE_SPACE_RULE,
        1,
        state_space,
        step_by_state_space,
        {
            "alike": {"groups": 2, "heads": 2, "keys": 16, "values": 72},
            "grouped": {"groups": 2, "heads": 6, "keys": 40, "values": 24},
            "wide": {"groups": 1, "heads": 3, "keys": 136, "values": 16, "taps": 2, "bias": False},
        },
    ),
}
