"""Turns: prompts that are asked together, several askers in the same rounds, and how their figures compare.

Speed is told as a ratio to a baseline, plain decoding, which takes turns with what it is compared with: a machine that
is slow for a minute is slow for both.
"""

import statistics
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import NamedTuple, TypeVar

from vllm_specext.measure.speculation import Speculation

Name = TypeVar("Name", bound=Hashable)
Round = TypeVar("Round")
Result = TypeVar("Result")


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


def in_turns(
    rounds: Iterable[Round], asks: Mapping[Name, Callable[[Round], Result]], settle: float = 0.0
) -> dict[Name, list[Result]]:
    """The result of each of ``asks`` in every one of ``rounds``, one after another in their order; ``settle`` seconds
    before each."""
    found: dict[Name, list[Result]] = {name: [] for name in asks}
    for each in rounds:
        for name, ask in asks.items():
            time.sleep(settle)
            found[name].append(ask(each))
    return found


def repeated(measured: Sequence[Result], count: int) -> list[Result]:
    """``count`` results: those ``measured`` of plain decoding, again and again."""
    return list(islice(cycle(measured), count))


class Spread(NamedTuple):
    """The middle and the ends of a figure over the rounds."""

    median: float
    lowest: float
    highest: float


def spread(ratios: Sequence[float]) -> Spread:
    return Spread(round(statistics.median(ratios), 3), round(min(ratios), 3), round(max(ratios), 3))


def speedups(own: Sequence[Turn], baseline: Sequence[Turn]) -> Spread:
    """Tokens per second over those of the baseline, ``baseline[i]`` being the turn next to ``own[i]``."""
    return spread([mine.output_throughput / other.output_throughput for mine, other in zip(own, baseline, strict=True)])


def same_tokens(own: Sequence[Turn], plain: Sequence[Turn]) -> bool:
    """Whether every answer has exactly the tokens of plain decoding."""
    return all(mine.tokens == other.tokens for mine, other in zip(own, plain, strict=True))
