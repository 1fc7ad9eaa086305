"""The forms in which rows of input come. Anything else is refused, with the keys that were found.

| keys | what they are |
| --- | --- |
| `token_ids`, `loss_mask` | prepared already: ids, and 1 or true where a drafter learns |
| `messages` | a chat: `role` and `content`; `tools` beside it |
| `conversations` | the same, or as ShareGPT writes it: `from` and `value`; `system` beside it |
| `prompt` | what a user asks, without an answer |
| `text` | text as it is, without a template |
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.speculative_config import short
from vllm_specext.training.data.conversation import ASSISTANT, TOOL, USER, Found, Message, conversation, text
from vllm_specext.training.data.row import KEY, make_row, short_hash

SPEAKERS = {
    **dict.fromkeys(("human", "user"), USER),
    **dict.fromkeys(("gpt", "chatgpt", "assistant", "model", "bing", "bard"), ASSISTANT),
    **dict.fromkeys(("observation", "tool", "function_response"), TOOL),
    "system": "system",
}
"""Roles by the names that ShareGPT has for who speaks."""

EXPECTED = "expected one of messages, conversations, prompt and text, or token_ids with loss_mask."

SHORTEST_PROMPT = 4
"""Tokens before the first that is learnt, of prepared rows. Fewer are no prompt, but how all texts begin."""

BESIDE = ("tools", "system", "key")
"""Keys that are read beside those of a form."""


def read_row(row: Mapping[str, Any], where: str, vocab_size: int) -> Found:
    """What ``row`` says, which was read at ``where``. ``ConfigurationError`` where it has none of the forms."""
    found = {key: value for key, value in row.items() if value is not None}
    for key, read in FORMS.items():
        if key in found:
            return read(found, where, vocab_size)
    raise ConfigurationError(f"{where} has {_names(row)}; {EXPECTED}")


def _names(row: Mapping[str, Any]) -> str:
    return f"the keys {short(', '.join(map(str, row)))}" if row else "no keys"


def _messages(row: Mapping[str, Any], where: str, _: int) -> Found:
    messages = [_message(each, f"{where}: messages[{i}]") for i, each in enumerate(_list(row, "messages", where))]
    return conversation(tuple(messages), _tools(row, where))


def _message(message: Any, where: str) -> Message:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise ConfigurationError(f"{where} has no role; expected role and content.")
    content = message.get("content")
    whole = isinstance(content, list) and all(isinstance(part, str | Mapping) for part in content)
    if not (whole or isinstance(content, str) or (content is None and len(message) > 1)):
        raise ConfigurationError(
            f"{where} has content of type {type(content).__name__}; expected text, or a list of parts."
        )
    return message


def _share_gpt(row: Mapping[str, Any], where: str, _: int) -> Found:
    turns = _list(row, "conversations", where)
    # SpecForge's rows have messages under this key.
    messages = [
        (_message if isinstance(turn, Mapping) and "role" in turn else _turn)(turn, f"{where}: conversations[{i}]")
        for i, turn in enumerate(turns)
    ]
    system = row.get("system")
    if isinstance(system, str) and system:
        messages.insert(0, {"role": "system", "content": system})
    return conversation(tuple(messages), _tools(row, where))


def _turn(turn: Any, where: str) -> Message:
    if not isinstance(turn, Mapping) or not {"from", "value"} <= turn.keys():
        raise ConfigurationError(f"{where} lacks from or value; expected both.")
    speaker, value = turn["from"], turn["value"]
    if not isinstance(speaker, str) or speaker not in SPEAKERS:
        raise ConfigurationError(f"{where} has from {short(repr(speaker))}; expected one of {', '.join(SPEAKERS)}.")
    if not isinstance(value, str):
        raise ConfigurationError(f"{where} has a value of type {type(value).__name__}; expected text.")
    return {"role": SPEAKERS[speaker], "content": value}


def _tools(row: Mapping[str, Any], where: str) -> tuple[Any, ...] | None:
    """The descriptions of tools, which tables have as JSON in a text."""
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except (ValueError, RecursionError):
            raise ConfigurationError(f"{where} has tools that are not JSON; expected a list.") from None
    if not isinstance(tools, list | None):
        raise ConfigurationError(f"{where} has tools of type {type(tools).__name__}; expected a list.")
    return tuple(tools) if tools else None


def _prompt(row: Mapping[str, Any], where: str, _: int) -> Found:
    return conversation(({"role": USER, "content": _text(row, "prompt", where)},), None)


def _raw(row: Mapping[str, Any], where: str, _: int) -> Found:
    return text(_text(row, "text", where))


def _prepared(row: Mapping[str, Any], where: str, vocab_size: int) -> Found:
    if "loss_mask" not in row:
        raise ConfigurationError(f"{where} has token_ids without loss_mask; expected both.")
    ids, mask = _list(row, "token_ids", where), _list(row, "loss_mask", where)
    if len(ids) != len(mask):
        raise ConfigurationError(
            f"{where} has {len(ids)} token_ids, but {len(mask)} values in loss_mask; expected as many."
        )
    bad = next((id for id in ids if type(id) is not int or not 0 <= id < vocab_size), None)
    if bad is not None:
        raise ConfigurationError(
            f"{where} has the id {short(repr(bad))} in token_ids; expected whole numbers from 0 to {vocab_size - 1}."
        )
    bad = next((value for value in mask if not isinstance(value, int) or value not in (0, 1)), None)
    if bad is not None:
        raise ConfigurationError(f"{where} has {short(repr(bad))} in loss_mask; expected 0, 1, true or false.")
    key = row.get("key")
    if not (isinstance(key, str) and KEY.fullmatch(key)):
        # What comes before the first answer is the nearest that there is to the first user message.
        prompt = ids[: mask.index(True)] if True in mask else ids
        key = f"{_hash(prompt if len(prompt) >= SHORTEST_PROMPT else ids)}-{_hash(ids)}-0"
    return make_row(ids, mask, key)


def _hash(ids: list[int]) -> str:
    return short_hash(",".join(map(str, ids)).encode())


def _list(row: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = row[key]
    if not isinstance(value, list) or not value:
        found = "an empty list" if isinstance(value, list) else f"a {type(value).__name__}"
        raise ConfigurationError(f"{where} has {found} as {key}; expected a list with something in it.")
    return value


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row[key]
    if not isinstance(value, str) or not value:
        found = "an empty text" if isinstance(value, str) else f"a {type(value).__name__}"
        raise ConfigurationError(f"{where} has {found} as {key}; expected text.")
    return value


FORMS: dict[str, Callable[[Mapping[str, Any], str, int], Found]] = {
    "token_ids": _prepared,
    "messages": _messages,
    "conversations": _share_gpt,
    "prompt": _prompt,
    "text": _raw,
}
"""By the key that tells a form; where there are several, the first of these counts."""

COLUMNS = (*FORMS, "loss_mask", *BESIDE)
"""All that is read of a table."""
