"""The prompts and configurations of a run, and which of the prompts count."""

from collections import Counter
from dataclasses import dataclass, field

from vllm_specext.bench.configurations import Configuration
from vllm_specext.bench.prompts import Prompt
from vllm_specext.measure.arguments import MOST_REQUESTS
from vllm_specext.measure.plain import PLAIN
from vllm_specext.measure.sampling import GREEDY, Sampling


@dataclass(frozen=True)
class Workload:
    """``target`` is ``None`` for the bundled one; ``arguments`` are vLLM's; ``configurations`` begin with plain
    decoding, and before it by vLLM as it is, where this differs. Everything is measured with each of ``samplings``."""

    target: str | None
    configurations: list[Configuration]
    prompts: list[Prompt]
    tokens: int
    rounds: int
    arguments: list[str] = field(default_factory=list)
    samplings: tuple[Sampling, ...] = (GREEDY,)
    left_out: dict[str, str] = field(default_factory=dict)
    """Rows that cannot be measured, each with the reason as a sentence."""
    at_once: int = MOST_REQUESTS
    """The most requests that an engine of the bundled target has to run at a time."""

    @property
    def baseline(self) -> Configuration:
        """What speed is relative to."""
        return self.configurations[0]

    @property
    def others(self) -> list[Configuration]:
        """What is measured in turns with the baseline; plain decoding first, where it is not the baseline itself."""
        return self.configurations[1:]

    @property
    def plain(self) -> Configuration:
        """Whose tokens the others must have."""
        return next(each for each in self.configurations if each.name == PLAIN)

    @property
    def drafting(self) -> list[Configuration]:
        return [each for each in self.configurations if each.speculative is not None]


@dataclass(frozen=True)
class Asked:
    """A turn in the target's ids, and the text that they spell."""

    task: str
    ids: list[int]
    text: str


@dataclass(frozen=True)
class Chosen:
    """The turns that count, and how many were left out."""

    asked: list[Asked]
    left_out_as_too_long: int
    left_out_as_loops: int

    def told(self) -> dict[str, object]:
        """How many turns count and how many are left out, for the file's header."""
        return {
            "counted": len(self.asked),
            "left_out_as_too_long": self.left_out_as_too_long,
            "left_out_as_loops": self.left_out_as_loops,
            "counted_by_task": dict(Counter(one.task for one in self.asked)),
        }
