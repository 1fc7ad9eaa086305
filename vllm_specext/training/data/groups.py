"""Groups of what was read, in its order. While the last conversations of a group are answered, those of the next groups
have begun, so that the target never waits for the longest answer of a few."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.answers import Answerer
from vllm_specext.training.data.conversation import Conversation, Found
from vllm_specext.training.data.regenerated import Conversations, Regenerated, Room
from vllm_specext.training.data.settings import DataSettings
from vllm_specext.training.data.template import ChatTemplate

HELD = 1.5
"""So many times as many tokens as the rows have that it answers at once, the target holds states of. It has room for
twice as many: conversations that have begun become longer."""

MOST_ROWS = 8
"""So many times as many rows are read, and not written, as the target answers at once, or as a group has."""


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
    def tokens(self) -> int:
        """What the target has said so far, and what it was asked: its states are held until the group's are written."""
        return sum(one.tokens for one in self.by_target.values())


def answered_groups(
    found: Iterator[Found], settings: DataSettings, template: ChatTemplate, answerer: Answerer | None
) -> Iterator[Group]:
    """Groups of ``settings.group`` rows, each when all of its conversations are over. Those after it have begun."""
    if answerer is None:
        while rows := list(islice(found, settings.group)):
            yield Group(rows)
        return
    conversations = Conversations(template, answerer, Room(settings.max_length, settings.max_new_tokens))
    begun: deque[Group] = deque()
    unreadable: ConfigurationError | None = None
    while True:
        while unreadable is None and _has_room(begun, conversations.running, settings):
            try:
                one = next(found, None)
            except ConfigurationError as error:
                unreadable = error  # what is before it may be enough
                break
            if one is None:
                break
            if not begun or len(begun[-1].found) == settings.group:
                begun.append(Group())
            begun[-1].found.append(one)
            if isinstance(one, Conversation) and _is_asked(one, settings.answers):
                begun[-1].by_target[one.key] = conversations.begin(one)
        if begun and not begun[0].is_over:
            conversations.wait()
        elif begun and (unreadable is None or len(begun[0].found) == settings.group):
            yield begun.popleft()  # which is full, or there is no more to read
        elif unreadable is not None:
            raise unreadable
        else:
            return


def _has_room(begun: deque[Group], running: int, settings: DataSettings) -> bool:
    """Whether another row may be read. ``HELD`` says how many states the target has, with a whole row for each
    conversation that goes on."""
    at_once = settings.conversations_at_once
    if not begun or len(begun[0].found) < settings.group:
        return running < at_once  # nothing is let go before a group is full
    if begun[0].is_over:
        return False  # what can be written is written first
    rows, tokens = sum(len(group.found) for group in begun), sum(group.tokens for group in begun)
    return (
        running < at_once
        and (running + 1) * settings.max_length + tokens <= HELD * at_once * settings.max_length
        and rows < MOST_ROWS * max(at_once, settings.group)
    )


def _is_asked(one: Conversation, answers: str) -> bool:
    """Whether the target answers ``one``."""
    if answers == "mix":
        # By the last digit of a hash: every second conversation, the same ones every time.
        return not one.answered or int(one.key[-1], 16) % 2 == 0
    return answers == "target"
