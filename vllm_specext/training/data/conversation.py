"""What a row of input says, whatever form it was in."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from vllm_specext.training.data.reasons import Reason
from vllm_specext.training.data.row import Row, short_hash

Message = Mapping[str, Any]
"""``role``, ``content``, and whatever else the template of the target reads."""

ASSISTANT, USER, TOOL = "assistant", "user", "tool"


@dataclass(frozen=True)
class Conversation:
    """Messages, with the descriptions of the tools that the template gets too."""

    messages: tuple[Message, ...]
    tools: tuple[Any, ...] | None
    key: str
    """``GROUP-CONVERSATION``"""

    @property
    def answered(self) -> bool:
        """Whether there is an answer in it."""
        return any(message["role"] == ASSISTANT for message in self.messages)


@dataclass(frozen=True)
class Text:
    """Text for which there is no template."""

    text: str
    key: str


Found = Conversation | Text | Row | Reason
"""A row of input that was read: the last where nothing can be made of it."""


def conversation(messages: tuple[Message, ...], tools: tuple[Any, ...] | None) -> Conversation | Reason:
    """The conversation of ``messages``, which have a role, and content that is text, parts or nothing."""
    plain = [_with_text(message) for message in messages]
    if None in plain:
        return Reason.NOT_TEXT
    kept = tuple(message for message in plain if message is not None)
    first = next((message for message in kept if message["role"] == USER), kept[0])
    try:
        group = short_hash(str(first.get("content")).encode())
        # Not sorted: the order of keys is in the text that some templates make of tools.
        content = short_hash(json.dumps([kept, tools], ensure_ascii=False, default=str).encode())
    except UnicodeEncodeError:
        return Reason.NOT_UNICODE
    return Conversation(kept, tools, f"{group}-{content}")


def text(content: str) -> Text | Reason:
    try:
        hashed = short_hash(content.encode())
    except UnicodeEncodeError:
        return Reason.NOT_UNICODE
    return Text(content, f"{hashed}-{hashed}")


def _with_text(message: Message) -> Message | None:
    """``message`` with its parts as one text, a line for each, as vLLM joins them; ``None`` if a part is no text."""
    parts = message.get("content")
    if not isinstance(parts, list):
        return message
    texts = [part if isinstance(part, str) else part.get("text") for part in parts]
    if not all(isinstance(each, str) for each in texts):
        return None
    return {**message, "content": "\n".join(texts)}
