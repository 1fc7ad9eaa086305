"""The Triton kernels of recurrent layers through every test of them."""

from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from test_recurrent import *  # noqa: F403
from test_recurrent import Kind, Rules, kept_rows, make_layer


@pytest.fixture
def rules() -> Rules:
    def of(kind: Kind) -> SimpleNamespace:
        kernel, path_kernels = (import_module(f"{kind.rule.package}.{name}") for name in ("kernel", "path_kernels"))
        return SimpleNamespace(attend=kernel.attend, advance=path_kernels.advance)

    return of


def test_states_are_rounded_by_chance() -> None:
    """To a neighbour of what the float32 state is, and on average to it."""
    from vllm_specext.kernels.state_space import path_kernels

    torch.manual_seed(5)
    exact = make_layer("space", "alike", slots=40)
    exact.conv_states.copy_(exact.conv_states[:1].expand(40, -1, -1))
    # The second head has numbers below the normal ones of float16.
    exact.step_bias[1] = -9
    states = exact.states[:1] / torch.tensor([1, 2**16])[:, None, None]
    exact.states.copy_(states.to(torch.float16).expand(40, -1, -1, -1))
    layer = replace(exact, states=exact.states.to(torch.float16), conv_states=exact.conv_states.clone(), by_chance=True)
    kept = kept_rows("space", exact, 2, torch.float32)
    kept = replace(kept, mixed=kept.mixed / 64)
    slots = [torch.arange(40, dtype=torch.int32)]
    path, counts = torch.tensor([[0, 1]]).expand(40, -1).contiguous(), torch.full((40,), 2, dtype=torch.int32)
    arguments = kept, slots, path, counts
    for each in (exact, layer):
        path_kernels.advance([each], *arguments)
    rounded, state = layer.states.double(), exact.states.double()
    nearest = state.to(torch.float16)
    above, below = (torch.nextafter(nearest, torch.full_like(nearest, sign * torch.inf)).double() for sign in (1, -1))
    distance = torch.maximum(above - nearest.double(), nearest.double() - below)
    assert state[:, 1].abs().median() < 2**-14
    for head in range(2):
        off, missed = ((each.double() - state)[:, head] / distance[:, head] for each in (rounded, nearest))
        assert off.abs().max() < 1.01
        assert missed.abs().max() < 0.51
        assert off.mean().abs() < 0.01
        assert (off.abs() > 0.6).double().mean() > 0.1  # so that they are not rounded to the nearest
