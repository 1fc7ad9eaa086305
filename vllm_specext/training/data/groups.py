"""Groups of what was read, in its order. While the last conversations of a group are answered, those of the next groups
have begun, so that the target never waits for the longest answer of a few."""

from collections import deque
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import islice

from vllm_specext.training.data.answers import Answerer
from vllm_specext.training.data.conversation import Conversation, Found
from vllm_specext.training.data.regenerated import Conversations, Regenerated, Room
from vllm_specext.training.data.settings import DataSettings
from vllm_specext.training.data.template import ChatTemplate


@dataclass
class Group:
    """Rows of input whose features are written together."""

    found: list[Found] = field(default_factory=list)
    by_target: dict[str, Regenerated] = field(default_factory=dict)
    """What the target says, by the key of the conversation."""

    @property
    def is_over(self) -> bool:
        return all(one.is_over for one in self.by_target.values())

    @property
    def waiting_tokens(self) -> int:
        """Of the conversations that are over, whose states are held until the group's are written."""
        return sum(one.tokens for one in self.by_target.values() if one.is_over)


def answered_groups(
    found: Iterator[Found], settings: DataSettings, template: ChatTemplate, answerer: Answerer | None
) -> Generator[Group, None, None]:
    """Groups of ``settings.group`` rows, each when all of its conversations are over. Those that have begun are
    abandoned where the iterator is closed."""
    if answerer is None:
        while rows := list(islice(found, settings.group)):
            yield Group(rows)
        return
    conversations = Conversations(template, answerer, Room(settings.max_length, settings.max_new_tokens))
    begun: deque[Group] = deque()
    try:
        while True:
            while _has_room(begun, conversations.running, settings) and (one := next(found, None)) is not None:
                if not begun or len(begun[-1].found) == settings.group:
                    begun.append(Group())
                begun[-1].found.append(one)
                if isinstance(one, Conversation) and _is_asked(one, settings.answers):
                    begun[-1].by_target[one.key] = conversations.begin(one)
            if not begun:
                return
            if begun[0].is_over:
                yield begun.popleft()  # which is full, or there is no more to read
            else:
                conversations.wait()
    except GeneratorExit:
        conversations.abandon()
        raise


def _has_room(begun: deque[Group], running: int, settings: DataSettings) -> bool:
    """Whether another row may be read. The target holds the states of all that was not written, at most those of twice
    as many rows as it answers at once."""
    if begun and begun[0].is_over and len(begun[0].found) == settings.group:
        return False  # what can be written is written first
    if not running:
        return True
    held = (running + 1) * settings.max_length + sum(group.waiting_tokens for group in begun)
    return running < settings.conversations_at_once and held <= 2 * settings.conversations_at_once * settings.max_length


def _is_asked(one: Conversation, answers: str) -> bool:
    """Whether the target answers ``one``."""
    if answers == "mix":
        # By the last digit of a hash: every second conversation, the same ones every time.
        return not one.answered or int(one.key[-1], 16) % 2 == 0
    return answers == "target"
