"""Turns next to plain decoding as a row of figures, with the names of ``vllm bench serve``'s JSON where it has one.

``speedup`` is the median over the rounds of this configuration's ``output_throughput`` divided by that of the baseline
measured just before it: plain decoding, by vLLM as it is where that is another thing.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from vllm_specext.measure.speculation import Speculation
from vllm_specext.measure.turns import Answer, Turn, repeated, same_tokens, speedups


def summarised(own: Sequence[Turn], baseline: Sequence[Turn], plain: Sequence[Turn] | None = None) -> dict[str, Any]:
    """The figures of a configuration's turns, ``baseline[i]`` being the turn of the baseline next to ``own[i]``, and
    ``plain`` the turns of plain decoding, where it is not the baseline: as many for each configuration."""
    plain = baseline if plain is None else repeated(plain, len(own))
    answers = [answer for turn in own for answer in turn.answers]
    throughputs = [turn.output_throughput for turn in own]
    duration = sum(turn.duration for turn in own)
    speedup = speedups(own, baseline)
    return {
        "identical": same_tokens(own, plain),
        "speedup": speedup.median,
        "speedup_lowest": speedup.lowest,
        "speedup_highest": speedup.highest,
        "rounds": len(own),
        "duration": round(duration, 3),
        "completed": len(answers),
        "total_input_tokens": sum(answer.prompt_tokens for answer in answers),
        "total_output_tokens": sum(len(answer.tokens) for answer in answers),
        "request_throughput": round(len(answers) / duration, 3),
        "output_throughput": round(statistics.median(throughputs), 2),
        "output_throughput_lowest": round(min(throughputs), 2),
        "output_throughput_highest": round(max(throughputs), 2),
        "baseline_output_throughput": round(statistics.median(turn.output_throughput for turn in baseline), 2),
        **milliseconds("ttft", answers, lambda answer: answer.first_token),
        **milliseconds("tpot", answers, lambda answer: answer.per_token),
        **milliseconds("e2el", answers, lambda answer: answer.latency),
        **vllm_keys(sum((turn.speculation for turn in own), Speculation())),
    }


def over_no_nodes(own: Sequence[Turn], without: Sequence[Turn]) -> dict[str, float]:
    """Speed relative to the same engine where nothing is drafted, ``without[i]`` being the turn next to ``own[i]``."""
    ratio = speedups(own, without)
    return {"ratio_to_no_nodes": ratio.median, "lowest_ratio": ratio.lowest, "highest_ratio": ratio.highest}


def milliseconds(name: str, answers: Sequence[Answer], of: Callable[[Answer], float]) -> dict[str, float]:
    values = sorted(1000 * of(answer) for answer in answers)
    return {
        f"mean_{name}_ms": round(statistics.fmean(values), 2),
        f"median_{name}_ms": round(statistics.median(values), 2),
        f"p99_{name}_ms": round(percentile(values, 0.99), 2),
    }


def percentile(ordered: Sequence[float], share: float) -> float:
    """Between the two nearest of the ``ordered`` values, in proportion."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def vllm_keys(told: Speculation) -> dict[str, Any]:
    """The counts with the names of ``vllm bench serve``'s JSON. A drafted token of a tree is a node, its position its
    depth."""
    if not told.verifications:
        return {}
    accepted = sum(told.accepted)
    return {
        "spec_decode_acceptance_rate": round(100 * accepted / told.nodes, 2) if told.nodes else 0.0,
        "spec_decode_acceptance_length": told.acceptance_length,
        "spec_decode_num_drafts": int(told.verifications),
        "spec_decode_draft_tokens": int(told.nodes),
        "spec_decode_accepted_tokens": int(accepted),
        "spec_decode_per_position_acceptance_rates": [told.per_verification(count) for count in told.accepted],
    }
