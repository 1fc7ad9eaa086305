"""The target's own answers: every user turn is answered by it, and its own earlier answers are the history.

A conversation ends early where going on would be guesswork: after an answer that was cut off or that loops, before
results of tools that the target itself may not call, and where the row is full.
"""

from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

from vllm_specext.training.data.answers import Answer, Answerer, Turn
from vllm_specext.training.data.conversation import ASSISTANT, TOOL, USER, Conversation, Message
from vllm_specext.training.data.loops import before_loop
from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.template import ChatTemplate
from vllm_specext.training.data.turns import AnsweredTurn, continues, rows_of, turn_name

Dialogue = Generator[Turn, Answer | None, Reason | None]


@dataclass(frozen=True)
class Room:
    """How many tokens a row and an answer may have."""

    row: int
    answer: int


@dataclass
class Regenerated:
    """What the target said in a conversation, so far."""

    turns: list[AnsweredTurn] = field(default_factory=list)
    ended_early: Counter[Reason] = field(default_factory=Counter)
    """Why it ended before its last turn."""
    is_over: bool = False
    tokens: int = 0
    """Of its rows, so far."""


class Conversations:
    """Conversations with the target, as many at once as are begun."""

    def __init__(self, template: ChatTemplate, answerer: Answerer, room: Room) -> None:
        self.template, self.answerer, self.room = template, answerer, room
        self._running: dict[str, tuple[Dialogue, Regenerated]] = {}
        """By the name of the turn that waits for its answer."""
        self._unasked: list[Turn] = []

    @property
    def running(self) -> int:
        """How many are not over."""
        return len(self._running)

    def begin(self, said: Conversation) -> Regenerated:
        """What the target will have said, once it ``is_over``."""
        answered = Regenerated()
        self._go_on(_dialogue(said, self.template, self.room, answered.turns), answered, None)
        return answered

    def wait(self) -> None:
        """Ask what was not asked yet, and go on with the conversations that get an answer."""
        turns, self._unasked = self._unasked, []
        answers = self.answerer.exchange(turns)
        if not answers:
            raise ValueError("the target was waited for, but gave no answer; expected one at least")
        for name, answer in answers.items():
            self._go_on(*self._running.pop(name), answer)

    def _go_on(self, dialogue: Dialogue, answered: Regenerated, answer: Answer | None) -> None:
        try:
            turn = dialogue.send(answer)
        except StopIteration as end:
            answered.is_over = True
            answered.ended_early.update([] if end.value is None else [end.value])
        else:
            self._running[turn.name] = dialogue, answered
            self._unasked.append(turn)
        answered.tokens = sum(map(len, rows_of(answered.turns, "")))


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
