"""What a chat template writes around the messages of a conversation."""

from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Part = list[int | str]
"""Markers, and the characters between them."""

CONVERSATION = [
    {"role": "system", "content": "quokka"},
    {"role": "user", "content": "wombat"},
    {"role": "assistant", "content": "numbat"},
    {"role": "user", "content": "bandicoot"},
]


class Place(NamedTuple):
    """What stands between two messages."""

    end: Part
    """How the message before ends."""
    begin: Part
    """How the message after begins; all of the place where the two cannot be told apart."""


def places(tokenizer: "PreTrainedTokenizerBase", vocabulary: Vocabulary) -> dict[str, Place]:
    """The places of a conversation by name; none without a chat template."""
    for conversation in (CONVERSATION, CONVERSATION[1:]):  # many templates know no system messages
        written = _around(tokenizer, vocabulary, conversation, generate=True)
        if written:
            break
    else:
        return {}
    ends = {"": [], "user": _last(tokenizer, vocabulary, conversation)}
    ends["assistant"] = _last(tokenizer, vocabulary, conversation[:-1])
    roles = ["", *(message["role"] for message in conversation), "assistant"]
    found = {}
    for place, part in enumerate(written):
        before, after = roles[place : place + 2]
        name = f"{before} > {after}" if place + 1 < len(written) else "prompt"
        end = ends.get(before, [])
        size = len(end) if part[: len(end)] == end else 0
        found[name] = Place(part[:size], part[size:])
    return found


def _last(tokenizer: "PreTrainedTokenizerBase", vocabulary: Vocabulary, conversation: list[dict[str, str]]) -> Part:
    around = _around(tokenizer, vocabulary, conversation, generate=False)
    return around[-1] if around else []


def _around(
    tokenizer: "PreTrainedTokenizerBase", vocabulary: Vocabulary, conversation: list[dict[str, str]], *, generate: bool
) -> list[Part]:
    """What stands before, between and after the messages; without the begin of the text."""
    try:
        ids = tokenizer.apply_chat_template(
            conversation, tokenize=True, add_generation_prompt=generate, return_dict=False
        )
    except Exception:  # a template is a program of the model's makers, which refuses in ways of its own
        return []
    if ids[:1] == [tokenizer.bos_token_id]:
        ids = ids[1:]
    parts: list[Part] = [[]]
    waiting = [message["content"] for message in conversation]
    for item in _items(ids, vocabulary):
        if isinstance(item, int):
            parts[-1].append(item)
            continue
        text = item
        while waiting and waiting[0] in text:
            before, text = text.split(waiting.pop(0), 1)
            parts[-1] += before
            parts.append([])
        parts[-1] += text
    return [] if waiting else parts


def _items(ids: list[int], vocabulary: Vocabulary) -> list[int | str]:
    """Markers, and the texts between them."""
    items: list[int | str] = []
    known = (id for id in ids if id < len(vocabulary.token_bytes))
    for is_marker, group in groupby(known, vocabulary.is_marker):
        run = list(group)
        items += run if is_marker else [vocabulary.bytes_of(run).decode(errors="ignore")]
    return items
