"""How the target is asked for its own answers: an interface, so that preparing data needs no engine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Turn:
    """What the target shall answer.

    Attributes:
        name: unique within a preparation. The row that ends with this turn's answer has it as its ``key``, so that
            what an implementation keeps of a turn, such as hidden states, can be found again.
        number: how many turns of the conversation were answered before.
        prompt_token_ids: the rendered conversation up to and with the generation prompt. The earlier answers in it
            are the target's own. No special tokens are to be added.
        known: the first ``known`` of ``prompt_token_ids`` are the prompt and the answer of the turn before, id by id.
            0 in the first turn, and where the template writes the turns before in another way.
        max_tokens: how many tokens may be generated, at least 1. The prompt and these fit in the row.
    """

    name: str
    number: int
    prompt_token_ids: tuple[int, ...]
    known: int
    max_tokens: int


@dataclass(frozen=True)
class Answer:
    """What the target generated.

    Attributes:
        token_ids: the ids as they were sampled, never text that was encoded again. The token that ended the answer is
            the last of them.
        ended: the target ended the answer. False if ``max_tokens`` did.
    """

    token_ids: tuple[int, ...]
    ended: bool


Answers = Mapping[str, Answer | None]
"""By the turn's name. ``None`` says that a turn has no usable answer, for example because its states were lost: the
conversation then ends before it, and this is counted."""


class Answerer(Protocol):
    """The target, as whoever prepares data sees it."""

    def exchange(self, turns: Sequence[Turn]) -> Answers:
        """Ask ``turns`` beside those that were asked before, and wait for answers: one at least, and all that there are
        by then.

        Turns that are not answered at the same time are of different conversations, so they may run at once.
        """
        ...

    def abandon(self) -> None:
        """Nothing that was asked is wanted any more."""
        ...
