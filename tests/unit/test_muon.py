"""Muon's steps in float32, against torch's in bfloat16."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from vllm_specext.training.muon import Float32Muon, orthogonal
from vllm_specext.training.optimization import make_optimizers

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
SHAPES = [(24, 40), (40, 24), (32, 32)]


@pytest.mark.parametrize("shape", SHAPES)
def test_steps_are_nearly_orthogonal(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    sizes = torch.linalg.svdvals(orthogonal(torch.randn(shape), COEFFICIENTS, 5, 1e-7))
    assert sizes.min() > 0.3
    assert sizes.max() < 1.3


@pytest.mark.parametrize("shape", SHAPES)
def test_a_matrix_moves_as_torch_moves_it(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    begin, gradients = torch.randn(shape), [torch.randn(shape) for _ in range(4)]

    def moved(optimizer: type[torch.optim.Muon], momentum: float = 0.9) -> tuple[Tensor, dict[str, Tensor]]:
        matrix = nn.Parameter(begin.clone())
        made = optimizer([matrix], lr=0.1, weight_decay=0.2, momentum=momentum)
        for gradient in gradients:
            matrix.grad = gradient.clone()
            made.step()
        return matrix.detach() - begin, made.state[matrix]

    ours, torchs, other = moved(Float32Muon), moved(torch.optim.Muon), moved(Float32Muon, momentum=0.5)
    apart = partial(torch.dist, torchs[0])
    assert apart(ours[0]) < 0.02 * torchs[0].norm()  # bfloat16 has eight bits
    assert apart(other[0]) > 0.1 * torchs[0].norm()
    assert ours[1].keys() == torchs[1].keys()
    torch.testing.assert_close(ours[1]["momentum_buffer"], torchs[1]["momentum_buffer"])


def test_what_has_no_gradient_stays() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    adamw, muon = make_optimizers(model, "muon", 0.1, 0.0, 5.0)
    assert isinstance(muon, Float32Muon)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    model[0](torch.randn(2, 4)).sum().backward()
    adamw.step()
    muon.step()
    same = [torch.equal(one, other) for one, other in zip(before, model.parameters(), strict=True)]
    assert same == [False, False, True, True]
