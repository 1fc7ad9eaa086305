"""The held-out prompts that a drafter is checked on, and what the target answers to them without drafts."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.loops import before_loop
from vllm_specext.training.data.row import Row

PROMPTS = 48
ANSWER = 128
"""Tokens of the longest answer."""
ENOUGH = 48
"""Prompts that leave less room are left out, where others leave more."""


@dataclass(frozen=True)
class Asked:
    prompts: list[list[int]]
    tokens: int
    """The most of an answer."""

    def of(self, answers: Sequence["Expected"]) -> "Asked":
        """The prompts of these alone."""
        return Asked([one.prompt for one in answers], self.tokens)


@dataclass(frozen=True)
class Expected:
    """The target's own answer to a prompt."""

    prompt: list[int]
    answer: list[int]
    longer: list[int]
    """The answer and how it goes on after its end."""


def choose(rows: Iterable[Row], max_length: int, chain: int) -> Asked:
    """Prompts up to their first answers, with as much room for answers as most of them leave, and for a ``chain`` after
    them."""
    found: list[list[int]] = []
    for row in rows:
        begin = int(np.flatnonzero(row.loss_mask)[0])
        if begin:
            found.append(row.token_ids[:begin].tolist())
    rooms = [max_length - len(prompt) - chain - 2 for prompt in found]
    least = min(ENOUGH, int(np.median(rooms))) if rooms else 0
    chosen = [(prompt, room) for prompt, room in zip(found, rooms, strict=True) if room >= max(least, 1)][:PROMPTS]
    if not chosen:
        raise ConfigurationError(
            f"no held-out prompt leaves room for an answer within --max-length {max_length}; expected at least one."
        )
    return Asked([prompt for prompt, _ in chosen], min(ANSWER, *(room for _, room in chosen)))


def expected(asked: Asked, plain: Sequence[list[int]], stop_ids: Collection[int]) -> list[Expected]:
    """What an engine has to answer, of ``plain`` answers that ran on after their ends. Those that loop are left out,
    unless all do: any drafter drafts a loop."""
    found = [
        Expected(prompt, _ended(longer[: asked.tokens], stop_ids), longer)
        for prompt, longer in zip(asked.prompts, plain, strict=True)
    ]
    straight = [one for one in found if before_loop(one.answer) == len(one.answer)]
    return straight or found


def _ended(answer: list[int], stop_ids: Collection[int]) -> list[int]:
    end = next((place for place, token in enumerate(answer) if token in stop_ids), len(answer))
    return answer[: end + 1]
