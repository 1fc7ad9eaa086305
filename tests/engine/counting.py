"""What the engine of ``runner.py`` did where its answers do not show it."""

from collections import Counter
from typing import Any

draws = {"argmax": 0, "sampler": 0}
"""Batches for which one argmax was enough to draw (``greedy.py``), and the others."""

learned = {"trees": 0.0, "expected": 0.0, "accepted": 0.0}
"""Verified trees that the sharpness of a drafter was learned from, and the tokens that they were expected to have
accepted and had."""

depths: Counter[int] = Counter()
"""Growths by the depth of the deepest node."""


VERIFIED = "vllm:spec_decode_num_drafts", "vllm:spec_decode_num_accepted_tokens"


def accepted_so_far(llm: Any, before: list[list[float]]) -> list[float]:
    """Drafts that were verified, and tokens of them that were accepted, beyond those ``before``."""
    values = {metric.name: metric.value for metric in llm.get_metrics() if metric.name in VERIFIED}
    return [values.get(name, 0) - sum(one[place] for one in before) for place, name in enumerate(VERIFIED)]


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
    from vllm_specext.engine.drafting import calibrated

    stock = calibrated.calibrate

    def calibrate(known: Any, slots: Any, heat: Any, expected: Any, sampled: Any, verified: int, counts: Any) -> Any:
        weights = expected.new_ones(verified) if counts is None else counts.float()
        learned["trees"] += float(weights.sum())
        learned["expected"] += float((expected[slots[:verified]] * weights).sum())
        learned["accepted"] += float(((sampled[:verified] - 1) * weights).sum())
        return stock(known, slots, heat, expected, sampled, verified, counts)

    calibrated.calibrate = calibrate  # type: ignore[attr-defined]


def count_depths() -> None:
    from vllm_specext.engine.drafting.tree_grower import TreeGrower

    stock = TreeGrower.__call__

    def grow(self: Any, *args: Any) -> Any:
        drafted = stock(self, *args)
        depths[int(drafted.topology.depths.max())] += 1
        return drafted

    TreeGrower.__call__ = grow  # type: ignore[method-assign]


def cache_groups(llm: Any) -> int:
    """The number of groups of layers that have a block table and metadata of their own."""
    scheduler = llm.llm_engine.engine_core.engine_core.scheduler
    return len(scheduler.kv_cache_config.kv_cache_groups)
