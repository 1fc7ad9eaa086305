"""The sharpness that is learned is the one that makes a drafter's probabilities those of what is accepted."""

from math import exp, log

import pytest
import torch
from torch import Tensor

from vllm_specext.tree.calibration import FIRST, Learned, calibrate
from vllm_specext.tree.expansion import Expansion, best_tokens

K, LEVELS, NODES = 6, 5, 24


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


def course(text: Text, steps: int) -> list[float]:
    """The sharpness for greedy requests in each of so many ``steps``."""
    learned, slots = Learned.nothing("cpu"), torch.arange(text.requests)
    temperatures = torch.zeros(text.requests)
    sharpness = calibrate(learned, slots, temperatures, temperatures, slots, verified=0)
    found = []
    for _ in range(steps):
        found.append(float(sharpness[0]))
        expected, accepted = text.verified(sharpness)
        sharpness = calibrate(learned, slots, temperatures, expected, 1 + accepted, text.requests)
    return found


def mean(sharpness: list[float]) -> float:
    return exp(sum(map(log, sharpness)) / len(sharpness))


@pytest.mark.parametrize("requests", [1, 64])
@pytest.mark.parametrize("right", [0.5, 1.0, 3.0, 6.0])
def test_it_finds_the_sharpness_of_the_text(right: float, requests: int) -> None:
    settled = course(Text(right, requests), steps=300)[150:]
    assert mean(settled) == pytest.approx(right, rel=0.2)
    assert max(settled) / min(settled) < (4 if requests == 1 else 1.5)  # it neither runs away nor swings


def test_it_is_nearly_there_after_fifty_verifications() -> None:
    assert mean(course(Text(3.0, 1), steps=80)[50:]) > 2.2 > FIRST[0]
