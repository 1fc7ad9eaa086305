"""The prompts and configurations of a run, and which of the prompts count."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm_specext.bench.configurations import Configuration
from vllm_specext.bench.prompts import Prompt
from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.loops import is_loop
from vllm_specext.measure.plain import PLAIN


@dataclass(frozen=True)
class Workload:
    """``target`` is ``None`` for the bundled one; ``arguments`` are vLLM's; ``configurations`` begin with plain
    decoding, and before it by vLLM as it is, where this differs."""

    target: str | None
    configurations: list[Configuration]
    prompts: list[Prompt]
    tokens: int
    rounds: int
    arguments: list[str] = field(default_factory=list)

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
    """A prompt in the target's ids, and the text that they spell."""

    task: str
    ids: list[int]
    text: str


def that_fit(asked: Sequence[Asked], tokens: int, max_model_len: int) -> list[Asked]:
    """The prompts that leave room for an answer of ``tokens``."""
    fitting = [one for one in asked if len(one.ids) + tokens <= max_model_len]
    if not fitting:
        raise ConfigurationError(
            f"no prompt fits: with --tokens {tokens} there is room for {max_model_len - tokens} of the "
            f"{max_model_len} tokens of a sequence, and the shortest prompt has {min(len(one.ids) for one in asked)}."
        )
    return fitting


def without_loops(asked: Sequence[Asked], answers: Sequence[list[int]]) -> list[Asked]:
    """The prompts whose plain answer does not go round in circles; a loop would be easy to draft."""
    kept = [one for one, tokens in zip(asked, answers, strict=True) if not is_loop(tokens)]
    if not kept:
        raise ConfigurationError(
            f"the plain answers of all {len(asked)} prompts are loops, which say nothing about drafts; take other "
            "prompts with --prompts or shorter answers with --tokens."
        )
    return kept


def told(all_prompts: Sequence[Prompt], fitting: Sequence[Asked], kept: Sequence[Asked]) -> dict[str, object]:
    """How many prompts count and how many are left out, for the file's header."""
    return {
        "counted": len(kept),
        "left_out_as_too_long": len(all_prompts) - len(fitting),
        "left_out_as_loops": len(fitting) - len(kept),
        "counted_by_task": dict(Counter(one.task for one in kept)),
    }
