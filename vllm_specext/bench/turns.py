"""One turn of one configuration (all prompts, so many at a time), and turns next to plain decoding as a row of figures.

Rows have the names of ``vllm bench serve``'s JSON where it has one. ``speedup`` is the median over the rounds of this
configuration's ``output_throughput`` divided by that of plain decoding measured just before it.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from vllm_specext.bench.counters import vllm_keys
from vllm_specext.demo.run import Speculation


@dataclass(frozen=True)
class Answer:
    """Token ids, and seconds from the request to its first token and to its end."""

    tokens: list[int]
    first_token: float
    latency: float
    prompt_tokens: int

    @property
    def per_token(self) -> float:
        """Seconds per token after the first one."""
        return (self.latency - self.first_token) / max(1, len(self.tokens) - 1)


@dataclass(frozen=True)
class Turn:
    answers: list[Answer]
    duration: float
    """Seconds from the first request to the last answer."""
    speculation: Speculation = field(default_factory=Speculation)

    @property
    def tokens(self) -> list[list[int]]:
        return [answer.tokens for answer in self.answers]

    @property
    def output_throughput(self) -> float:
        """Tokens per second."""
        return sum(map(len, self.tokens)) / self.duration


def summarised(own: Sequence[Turn], plain: Sequence[Turn]) -> dict[str, Any]:
    """The figures of a configuration's turns, ``plain[i]`` being the turn of plain decoding next to ``own[i]``."""
    answers = [answer for turn in own for answer in turn.answers]
    throughputs = [turn.output_throughput for turn in own]
    duration = sum(turn.duration for turn in own)
    ratios = [mine.output_throughput / other.output_throughput for mine, other in zip(own, plain, strict=True)]
    return {
        "identical": all(mine.tokens == other.tokens for mine, other in zip(own, plain, strict=True)),
        "speedup": round(statistics.median(ratios), 3),
        "speedup_lowest": round(min(ratios), 3),
        "speedup_highest": round(max(ratios), 3),
        "rounds": len(own),
        "duration": round(duration, 3),
        "completed": len(answers),
        "total_input_tokens": sum(answer.prompt_tokens for answer in answers),
        "total_output_tokens": sum(len(answer.tokens) for answer in answers),
        "request_throughput": round(len(answers) / duration, 3),
        "output_throughput": round(statistics.median(throughputs), 2),
        "output_throughput_lowest": round(min(throughputs), 2),
        "output_throughput_highest": round(max(throughputs), 2),
        "plain_output_throughput": round(statistics.median(turn.output_throughput for turn in plain), 2),
        **milliseconds("ttft", answers, lambda answer: answer.first_token),
        **milliseconds("tpot", answers, lambda answer: answer.per_token),
        **milliseconds("e2el", answers, lambda answer: answer.latency),
        **vllm_keys(sum((turn.speculation for turn in own), Speculation())),
    }


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
