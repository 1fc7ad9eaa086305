"""How far a drafter can be trusted, learned from a step, against a plain loop.

Every test here runs in torch and in C++, with the Triton kernel on a GPU, and with it under Triton's interpreter
(``cases/case_calibration.py``).
"""

from collections.abc import Callable
from math import exp, log

import pytest
import torch
from bodies import BODIES, choose, fill_new_memory
from torch import Tensor

from vllm_specext.kernels import calibration as dispatch
from vllm_specext.tree.calibration import FIRST, LEAST, MOST, PATIENCE, UP_TO, Learned

Calibrate = Callable[..., Tensor]
SLOTS = 200


@pytest.fixture(params=BODIES)
def calibrate(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Calibrate:
    """Of tensors on the CPU, wherever it runs."""
    choose(request.param, monkeypatch)
    if request.param != "GPU":
        fill_new_memory(monkeypatch)
        return dispatch.calibrate

    def on_gpu(learned: Learned, *given: Tensor, verified: int, counts: Tensor | None = None) -> Tensor:
        moved = Learned(learned.logarithms.cuda(), learned.up_to.cuda())
        counts = None if counts is None else counts.cuda()
        found = dispatch.calibrate(moved, *(tensor.cuda() for tensor in given), verified=verified, counts=counts)
        learned.logarithms.copy_(moved.logarithms)
        return found.cpu()

    return on_gpu


def kind_of(temperature: float) -> int:
    """Temperatures in float32, as requests have them."""
    return sum(temperature > float(torch.tensor(up_to)) for up_to in UP_TO)


def expected_of(
    before: list[float],
    temperatures: list[float],
    expected: list[float],
    num_sampled: list[int],
    counts: list[bool],
) -> list[float]:
    """The logarithms after a step, of which the first requests, as many as ``counts``, have verified a draft."""
    after = []
    for kind, known in enumerate(before):
        off = [
            (num_sampled[at] - 1 - expected[at]) / (1 + expected[at])
            for at, own in enumerate(counts)
            if own and kind_of(temperatures[at]) == kind
        ]
        after.append(min(max(known + sum(off) / (PATIENCE + len(off)), LEAST), MOST))
    return after


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("requests", "verified"), [(1, 0), (1, 1), (5, 3), (64, 64), (150, 130)])
@pytest.mark.parametrize("all_count", [True, False])
def test_a_step_moves_the_sharpness_as_a_loop_says(
    calibrate: Calibrate, requests: int, verified: int, all_count: bool, dtype: torch.dtype
) -> None:
    random = torch.Generator().manual_seed(requests)
    slots = torch.randperm(SLOTS, generator=random)[:requests].to(dtype)
    temperatures = torch.tensor([0.0, 0.1, 0.4, 0.5, 0.8, 0.81, 2.0])[torch.randint(7, (SLOTS,), generator=random)]
    expected = 6 * torch.rand(SLOTS, generator=random)
    num_sampled = torch.randint(1, 8, (requests,), generator=random, dtype=torch.int32)
    counts = torch.rand(verified, generator=random) < (1.0 if all_count else 0.5)
    learned = Learned.nothing("cpu")
    before = learned.logarithms.tolist()
    given = slots, temperatures, expected, num_sampled
    found = calibrate(learned, *given, verified=verified, counts=None if all_count else counts.to(torch.uint8))
    own = temperatures[slots.long()].tolist()
    after = expected_of(before, own, expected[slots.long()].tolist(), num_sampled.tolist(), counts.tolist())
    assert learned.logarithms.tolist() == pytest.approx(after, rel=1e-5, abs=1e-6)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([exp(after[kind_of(one)]) for one in own], rel=1e-5)


def greedy(calibrate: Calibrate, learned: Learned, expected: float, accepted: int) -> float:
    """The sharpness after one more greedy request verified a tree."""
    slot, number = torch.zeros(1, dtype=torch.int64), torch.tensor([1 + accepted], dtype=torch.int32)
    return float(calibrate(learned, slot, torch.zeros(1), torch.tensor([expected]), number, verified=1))


def test_more_than_was_expected_makes_sharper_and_less_flatter(calibrate: Calibrate) -> None:
    assert greedy(calibrate, Learned.nothing("cpu"), 2.0, accepted=4) > 1.01 * FIRST[0]
    assert greedy(calibrate, Learned.nothing("cpu"), 2.0, accepted=2) == pytest.approx(FIRST[0])
    assert greedy(calibrate, Learned.nothing("cpu"), 2.0, accepted=1) < 0.99 * FIRST[0]


def test_it_stays_within_bounds_and_moves_no_other_kind(calibrate: Calibrate) -> None:
    for accepted, bound in ((1000, MOST), (0, LEAST)):
        learned = Learned.nothing("cpu")
        for _ in range(300):
            sharpness = greedy(calibrate, learned, 2.0, accepted)
        assert sharpness == pytest.approx(exp(bound))
        assert learned.logarithms[1:].tolist() == pytest.approx([log(one) for one in FIRST[1:]])
