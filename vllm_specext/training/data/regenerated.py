"""The target's own answers: every user turn is answered by it, and its own earlier answers are the history.

A conversation ends early where going on would be guesswork: after an answer that was cut off or that loops, before
results of tools that the target itself may not call, and where the row is full.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

from vllm_specext.training.data.answers import Answer, Answerer, Turn
from vllm_specext.training.data.conversation import ASSISTANT, TOOL, USER, Conversation, Message
from vllm_specext.training.data.loops import before_loop
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.template import ChatTemplate
from vllm_specext.training.data.turns import AnsweredTurn, continues, turn_name

Dialogue = Generator[Turn, Answer | None, Reason | None]


@dataclass(frozen=True)
class Room:
    """How many tokens a row and an answer may have."""

    row: int
    answer: int


def regenerated_turns(
    conversations: Sequence[Conversation], template: ChatTemplate, answerer: Answerer, room: Room
) -> list[tuple[list[AnsweredTurn], Counter[Reason]]]:
    """For each of ``conversations`` the turns that the target answered, and why it ended before its last."""
    answered: list[list[AnsweredTurn]] = [[] for _ in conversations]
    ends: list[Counter[Reason]] = [Counter() for _ in conversations]
    dialogues = [_dialogue(said, template, room, own) for said, own in zip(conversations, answered, strict=True)]
    replies: dict[int, Answer | None] = dict.fromkeys(range(len(dialogues)))
    while replies:
        asked: dict[int, Turn] = {}
        for i, reply in replies.items():
            try:
                asked[i] = dialogues[i].send(reply)
            except StopIteration as end:
                if end.value is not None:
                    ends[i][end.value] += 1
        turns = list(asked.values())
        replies = dict(zip(asked, answerer.answer(turns), strict=True)) if turns else {}
    return list(zip(answered, ends, strict=True))


def _dialogue(said: Conversation, template: ChatTemplate, room: Room, answered: list[AnsweredTurn]) -> Dialogue:
    """Ask for one answer after the other and add each to ``answered``; why it ended early is returned."""
    history: list[Message] = []
    for number, messages in enumerate(questions(said.messages)):
        history += messages
        if any(message["role"] == TOOL for message in messages):
            return Reason.TOOLS
        prompt = template.ids(history, said.tools, generation_prompt=True)
        if isinstance(prompt, Reason):
            return prompt
        if len(prompt) >= room.row:
            return Reason.PROMPT_TOO_LONG
        known = len(answered[-1].ids) if answered and continues(prompt, answered[-1]) else 0
        most = min(room.answer, room.row - len(prompt))
        answer = yield Turn(turn_name(said.key, number), number, tuple(prompt), known, most)
        if answer is None or not answer.token_ids:
            return Reason.ANSWER_LOST
        ids = list(answer.token_ids)
        answered.append(AnsweredTurn(number, prompt, ids))
        if not answer.ended:
            return Reason.UNFINISHED
        if before_loop(ids) < len(ids):
            return Reason.LOOP
        history.append({"role": ASSISTANT, "content": template.answer_text(ids)})
    return None if answered else Reason.NO_ANSWER


def questions(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """What is said before each answer: at least one message of a user or a tool, and what is beside it."""
    said: list[Message] = []
    for message in messages:
        if message["role"] == ASSISTANT:
            if _asks(said):
                yield said
                said = []
        else:
            said.append(message)
    if _asks(said):
        yield said


def _asks(messages: Sequence[Message]) -> bool:
    return any(message["role"] in (USER, TOOL) for message in messages)
