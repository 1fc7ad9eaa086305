"""The target's markers in the drafter's tokens, by the role that they play and never by what they are called.

The roles are the begin of a text, its ends, and what stands around the messages of a conversation; the last are found
by writing a small conversation with both chat templates. A marker becomes what the drafter's template has in its place,
as far as that is the same wherever the marker stands; where it is not, the marker has no entry.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby, takewhile
from typing import TYPE_CHECKING

from vllm_specext.methods.foreign_vocab.text.conversation import Part, Place, places
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def map_markers(
    target_tokenizer: "PreTrainedTokenizerBase",
    drafter_tokenizer: "PreTrainedTokenizerBase",
    target: Vocabulary,
    drafter: Vocabulary,
) -> dict[int, tuple[int, ...]]:
    mapped = _map_turns(places(target_tokenizer, target), places(drafter_tokenizer, drafter), drafter)
    if drafter.ends:
        eos = drafter_tokenizer.eos_token_id
        for end in target.ends:
            mapped.setdefault(end, (eos if eos in drafter.ends else min(drafter.ends),))
    begin, own = target_tokenizer.bos_token_id, drafter_tokenizer.bos_token_id
    if target.is_marker(begin) and drafter.is_marker(own):
        mapped.setdefault(begin, (own,))
    return mapped


def opening(tokenizer: "PreTrainedTokenizerBase") -> tuple[int, ...]:
    """The tokens that the tokenizer writes before a text without being asked."""
    bos = tokenizer.bos_token_id
    return (bos,) if bos is not None and tokenizer.encode("a")[0] == bos else ()


def _map_turns(
    target: dict[str, Place], drafter: dict[str, Place], vocabulary: Vocabulary
) -> dict[int, tuple[int, ...]]:
    found: dict[int, list[tuple[int, ...]]] = {}
    for name in target.keys() & drafter.keys():
        for marker, part in _match(target[name], drafter[name]):
            found.setdefault(marker, []).append(_ids(part, vocabulary))
    common = {marker: _common(variants) for marker, variants in found.items()}
    return {marker: ids for marker, ids in common.items() if ids}


def _match(target: Place, drafter: Place) -> Iterator[tuple[int, Part]]:
    if _markers(target.end) and _markers(target.begin):
        yield from _align(target.end, drafter.end)
        yield from _align(target.begin, drafter.begin)
    else:
        yield from _align(target.end + target.begin, drafter.end + drafter.begin)


def _align(target: Part, drafter: Part) -> Iterator[tuple[int, Part]]:
    """Match markers by the words between them, such as the names of roles: the target's come through as text."""
    groups = _between_words(target)
    if len(groups) == 1:
        yield from _pair(target, drafter)
    else:
        theirs = _between_words(drafter)
        # Where the numbers of words differ only what is before the first of them is in the same place.
        yield from (pair for t, d in zip(groups, theirs, strict=False) for pair in _pair(t, d))


def _pair(target: Part, drafter: Part) -> Iterator[tuple[int, Part]]:
    """The white space that follows a marker of the target's comes through as text, so it is not wanted twice."""
    markers = _markers(target)
    if not markers:
        return
    if len(_between_words(drafter)) == 1 and len(_markers(drafter)) == len(markers):
        parts = zip(_segments(target), _segments(drafter), strict=True)
        yield from ((t[0], d[:1] if len(t) > 1 else d) for t, d in parts)
        return
    end = len(drafter)
    while isinstance(target[-1], str) and end and str(drafter[end - 1]).isspace():
        end -= 1
    yield markers[0], drafter[:end]


def _markers(part: Part) -> list[int]:
    return [item for item in part if isinstance(item, int)]


def _between_words(part: Part) -> list[Part]:
    """Markers and white space before, between and after the words; one part if there are none."""
    groups: list[Part] = [[]]
    for is_text, items in groupby(part, lambda item: isinstance(item, str)):
        own = list(items)
        text = "".join(map(str, own)) if is_text else ""
        if words := text.strip():
            start = text.index(words)
            groups[-1] += own[:start]
            groups.append(own[start + len(words) :])
        else:
            groups[-1] += own
    return groups


def _segments(part: Part) -> list[list]:
    """Each marker with what follows it, up to the next."""
    segments: list[list] = []
    for item in part:
        if isinstance(item, int):
            segments.append([item])
        elif segments:
            segments[-1].append(item)
    return segments


def _ids(part: Part, vocabulary: Vocabulary) -> tuple[int, ...]:
    ids: list[int] = []
    for is_text, items in groupby(part, lambda item: isinstance(item, str)):
        own = list(items)
        ids += vocabulary.encode("".join(map(str, own))) if is_text else _markers(own)
    return tuple(ids)


def _common(variants: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    same = takewhile(lambda ids: len(set(ids)) == 1, zip(*variants, strict=False))
    return tuple(ids[0] for ids in same)
