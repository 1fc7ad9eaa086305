"""The sharpness that is learned is the one that makes a drafter's probabilities those of what is accepted."""

from math import exp, log

import pytest
import torch
from torch import Tensor

from vllm_specext.tree.calibration import FIRST, LEAST, MOST, UP_TO, Calibration
from vllm_specext.tree.expansion import Expansion, best_tokens

K, LEVELS, NODES = 6, 5, 24
GREEDY, HOT = torch.tensor(0.0), torch.tensor(1.0)


class Text:
    """Requests whose tokens have the probabilities of random logits times ``sharpness``, wherever they stand."""

    def __init__(self, sharpness: float, requests: int, seed: int = 0) -> None:
        self.sharpness, self.requests = sharpness, requests
        self.random = torch.Generator().manual_seed(seed)

    def verified(self, believed: Tensor) -> tuple[Tensor, Tensor]:
        """Of trees drafted with the sharpness that is ``believed`` ``[R]``: tokens that are expected, and accepted."""
        shape = (self.requests, LEVELS, K + 3)
        logits = torch.randn(shape, generator=self.random)
        growing = Expansion(*best_tokens(logits[:, 0], K, believed), LEVELS)
        for level in range(1, LEVELS):
            best = best_tokens(logits[:, level], K, believed)
            growing.grow(*(tensor[:, None].expand(-1, K, -1) for tensor in best))
        tokens, topology, expected = growing.tree(NODES)
        drawn = [
            torch.multinomial((self.sharpness * logits[:, level]).softmax(dim=-1), 1, generator=self.random)[:, 0]
            for level in range(LEVELS)
        ]
        accepted = torch.zeros(self.requests)
        for request in range(self.requests):
            node = 0
            for level in range(LEVELS):
                children = (topology.parents[request, 1:] == node) & (tokens[request] == drawn[level][request])
                if not children.any():
                    break
                node = 1 + int(children.nonzero()[0, 0])
                accepted[request] += 1
        return expected, accepted


def learned(text: Text, steps: int, temperature: Tensor = GREEDY) -> tuple[Calibration, list[float]]:
    """After so many ``steps``; and the sharpness of each."""
    calibration = Calibration(torch.device("cpu"))
    kinds = calibration.kinds(temperature.repeat(text.requests))
    course = []
    for _ in range(steps):
        sharpness = calibration.sharpness(kinds)
        course.append(float(sharpness[0]))
        calibration.learn(kinds, *text.verified(sharpness))
    return calibration, course


def mean(course: list[float]) -> float:
    return exp(sum(map(log, course)) / len(course))


@pytest.mark.parametrize("requests", [1, 64])
@pytest.mark.parametrize("right", [0.5, 1.0, 3.0, 6.0])
def test_it_finds_the_sharpness_of_the_text(right: float, requests: int) -> None:
    _, course = learned(Text(right, requests), steps=300)
    assert mean(course[150:]) == pytest.approx(right, rel=0.2)
    spread = max(course[150:]) / min(course[150:])
    assert spread < (4 if requests == 1 else 1.5)  # it neither runs away nor swings


def test_it_is_nearly_there_after_fifty_verifications() -> None:
    _, course = learned(Text(3.0, 1), steps=80)
    assert mean(course[50:]) > 2.2 > FIRST[0]


def test_trees_that_promise_what_they_keep_change_little() -> None:
    calibration = Calibration(torch.device("cpu"))
    kinds = calibration.kinds(GREEDY.repeat(2))
    calibration.learn(kinds, torch.tensor([2.0, 3.0]), torch.tensor([2.0, 3.0]))
    torch.testing.assert_close(calibration.sharpness(kinds), torch.full((2,), FIRST[0]))


def test_temperatures_of_a_kind_learn_together_and_others_nothing_of_it() -> None:
    calibration, _ = learned(Text(4.0, 8), steps=20)
    temperatures = torch.tensor([0.0, 0.01, *UP_TO[1:], 0.81, 2.0])
    kinds = calibration.kinds(temperatures)
    assert kinds.tolist() == [0, 1, 1, 2, 3, 3]
    sharpness = calibration.sharpness(kinds)
    assert sharpness[0] > FIRST[0]
    torch.testing.assert_close(sharpness[1:], torch.tensor(FIRST)[kinds[1:]])


def test_what_does_not_count_moves_nothing() -> None:
    one, both = (Calibration(torch.device("cpu")) for _ in range(2))
    kinds = one.kinds(torch.zeros(2))
    both.learn(kinds, torch.tensor([1.0, 1.0]), torch.tensor([3.0, 0.0]), torch.tensor([True, False]))
    one.learn(kinds[:1], torch.tensor([1.0]), torch.tensor([3.0]))
    assert torch.equal(both.sharpness(kinds), one.sharpness(kinds))
    assert one.sharpness(kinds)[0] > FIRST[0]


def test_it_stays_within_bounds() -> None:
    for accepted, bound in ((1000.0, MOST), (0.0, LEAST)):
        calibration = Calibration(torch.device("cpu"))
        kinds = calibration.kinds(HOT[None])
        for _ in range(300):
            calibration.learn(kinds, torch.tensor([2.0]), torch.tensor([accepted]))
        torch.testing.assert_close(calibration.sharpness(kinds), torch.tensor([bound]))
