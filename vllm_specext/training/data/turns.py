"""From the answered turns of one conversation to rows.

Turns share a row as long as the prompt of the next begins with the ids of the one before. A template that writes
earlier turns in another way, for example without their reasoning, begins a new row, where the earlier answers are
context only: no token is in the loss twice.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from vllm_specext.training.data.row import Row, make_row


@dataclass(frozen=True)
class AnsweredTurn:
    """A turn whose answer is known as ids: the row's text is ``prompt`` and then ``answer``."""

    number: int
    prompt: list[int]
    answer: list[int]

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.answer


def rows_of(turns: Sequence[AnsweredTurn], key: str) -> list[Row]:
    """The rows of a conversation's ``turns``, in their order. Each is named after the last turn in it."""
    groups: list[list[AnsweredTurn]] = []
    for turn in turns:
        if groups and continues(turn.prompt, groups[-1][-1]):
            groups[-1].append(turn)
        else:
            groups.append([turn])
    return [_row(group, key) for group in groups]


def continues(prompt: list[int], before: AnsweredTurn) -> bool:
    """Whether ``prompt`` begins with the turn ``before`` and its answer."""
    return begins_with(prompt, before.ids)


def begins_with(ids: Sequence[int], first: Sequence[int]) -> bool:
    return ids[: len(first)] == first


def turn_name(key: str, number: int) -> str:
    """The name of a conversation's turn, which is the key of the row that ends with it."""
    return f"{key}-{number}"


def conversation_of(name: str) -> str:
    """The key of the conversation whose turn, or row, has the ``name``."""
    return name.rpartition("-")[0]


def _row(turns: Sequence[AnsweredTurn], key: str) -> Row:
    last = turns[-1]
    mask = [False] * len(last.ids)
    for turn in turns:
        start = len(turn.prompt)
        mask[start : start + len(turn.answer)] = [True] * len(turn.answer)
    return make_row(last.ids, mask, turn_name(key, last.number))
