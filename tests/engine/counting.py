"""What the engine of ``runner.py`` did where its answers do not show it."""

from typing import Any

draws = {"argmax": 0, "sampler": 0}
"""Batches for which one argmax was enough to draw (``greedy.py``), and the others."""

learned = {"trees": 0.0, "expected": 0.0, "accepted": 0.0}
"""Verified trees that the sharpness of a drafter was learned from, and the tokens that they were expected to have
accepted and had."""


def count_greedy_draws(never: bool) -> None:
    """Count the batches that are asked whether one argmax will do, by the answer; ``never``: it is always no."""
    from vllm_specext.engine.verification import greedy

    stock = greedy.wants_nothing_else

    def wants_nothing_else(*args: Any) -> bool:
        answer = stock(*args) and not never
        draws["argmax" if answer else "sampler"] += 1
        return answer

    greedy.wants_nothing_else = wants_nothing_else


def count_learned_trees() -> None:
    from vllm_specext.tree.calibration import Calibration

    stock = Calibration.learn

    def learn(self: Any, kinds: Any, expected: Any, accepted: Any, counts: Any = None) -> None:
        stock(self, kinds, expected, accepted, counts)
        weights = counts if counts is not None else expected > -1
        learned["trees"] += float(weights.sum())
        learned["expected"] += float((expected * weights).sum())
        learned["accepted"] += float((accepted * weights).sum())

    Calibration.learn = learn  # type: ignore[method-assign]
