"""One request's text in the tokens of the target and of the drafter, by byte positions (SLEM, arXiv 2502.05202).

``commit`` takes the target's tokens and brings the drafter's text, ``draft_ids``, up to them; ``convert`` takes what
the drafter wrote after it and says which tokens of the target that is. Both encode a window at the text's end anew, so
their cost does not grow with the text. The drafter's text has the bytes of the target's, except for a character that
the target has only begun, which waits for its end, and for bytes that are no UTF-8, which the drafter never sees. No
token reaches across a marker. A tokenizer that changes a text (lower case, another normal form) makes worse drafts, no
more: its tokens have known places only where a piece of text that was encoded ends.
"""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import accumulate
from typing import NamedTuple

from vllm_specext.methods.foreign_vocab.tokenizers.utf8 import is_boundary, leading, runs
from vllm_specext.methods.foreign_vocab.tokenizers.vocabulary import Vocabulary

LAST_CHARACTERS = 96
"""Number of last characters of a long text that are encoded apart where encoding changes it: the next window begins
with them."""

UNKNOWN = -1
"""End of a drafter's token within a text that did not survive encoding."""


class Outcome(StrEnum):
    EXACT = "exact"
    """The target's last tokens came out of encoding as they were."""
    OFFSET = "offset"
    """The target's last tokens came out otherwise, but a token begins where the committed text ends."""
    MERGE = "merge"
    """A token reaches across the end of the committed text, so the new text was encoded alone."""
    NONE = "none"
    """Nothing can be proposed."""


class Converted(NamedTuple):
    ids: list[int]
    outcome: Outcome


class Bridge:
    def __init__(
        self,
        target: Vocabulary,
        drafter: Vocabulary,
        markers: Mapping[int, Sequence[int]],
        *,
        lookbehind: int = 10,
        opening: Sequence[int] = (),
    ) -> None:
        """``markers``: the target's markers in the drafter's tokens; the others are left out of the drafter's text.
        ``lookbehind``: number of tokens before the text's end at which both windows begin. ``opening``: the tokens that
        the drafter's texts begin with; they are not written twice where the target's text begins with them too."""
        self.draft_ids: list[int] = list(opening)
        self._target, self._drafter, self._markers = target, drafter, markers
        self._lookbehind = lookbehind
        self._opening = list(opening)
        self._target_ends = _ends_of(target, drafter, markers)
        self._text = bytearray()
        """Bytes since the last marker."""
        self._target_ids: list[int] = []
        """Tokens since the last marker."""
        self._first = len(self.draft_ids)
        """The drafter's tokens up to the last marker."""
        self._start = 0
        """Bytes since the last marker before the first of the drafter's tokens."""
        self._ends: list[int] = []
        """Bytes since the last marker up to the end of each of the drafter's tokens since then."""
        self._covered = 0
        """Bytes since the last marker that the drafter's text stands for."""

    def commit(self, ids: Sequence[int]) -> int:
        """``ids``: the target's tokens that follow those committed before. How many of the drafter's leading tokens
        are as they were, those drafted included."""
        kept = self._rewind()
        before = self.draft_ids[kept:]
        del self.draft_ids[kept:]
        for id in ids:
            text = self._target.token_bytes[id]
            if text is not None:
                self._text += text
                self._target_ids.append(id)
                continue
            self._follow()
            mapped = list(self._markers.get(id, ()))
            self._write_marker([] if mapped == self.draft_ids == self._opening else mapped)
        self._follow()
        return kept + _common(before, self.draft_ids[kept:])

    def convert(self, drafted: Sequence[int]) -> Converted:
        """``drafted``, by the drafter, follows its text and is appended to it; the target's tokens for it, of which the
        last may end the text and none other is a marker."""
        self.draft_ids += drafted
        written, end = self._read(drafted)
        waiting = self._text[self._covered :]
        if not written.startswith(waiting):
            return Converted([], Outcome.NONE)
        new = written[len(waiting) :]
        if not new:
            return Converted([], Outcome.NONE) if end is None else Converted([end], Outcome.EXACT)
        ids, outcome, is_whole = self._encode_following(new)
        if end is not None and is_whole:
            ids.append(end)
        return Converted(ids, outcome)

    # The drafter's text

    def _rewind(self) -> int:
        """Go back by the lookbehind, and on to the start of a character; the drafter's tokens before that place."""
        count = max(0, len(self._ends) - self._lookbehind)
        while count and not (self._ends[count - 1] != UNKNOWN and is_boundary(self._text, self._ends[count - 1])):
            count -= 1
        del self._ends[count:]
        self._covered = self._ends[-1] if count else self._start
        return self._first + count

    def _follow(self) -> None:
        """Bring the drafter's text up to the target's."""
        found, size = runs(bytes(self._text[self._covered :]))
        for text, end in found:
            self._write(text, self._covered + end)
        self._covered += size
        self._place_last(self._covered)

    def _write(self, text: str, end: int) -> None:
        ids = self._drafter.encode(text)
        if len(text) > 2 * LAST_CHARACTERS and self._drafter.bytes_of(ids) != text.encode():
            text, rest = text[:-LAST_CHARACTERS], text[-LAST_CHARACTERS:]
            self._append(self._drafter.encode(text), text, end - len(rest.encode()))
            text, ids = rest, self._drafter.encode(rest)
        self._append(ids, text, end)

    def _append(self, ids: Sequence[int], text: str, end: int) -> None:
        self.draft_ids += ids
        if self._drafter.bytes_of(ids) == (data := text.encode()):
            lengths = (len(self._drafter.token_bytes[id] or b"") for id in ids)
            self._ends += (end - len(data) + size for size in accumulate(lengths))
        else:
            self._ends += [UNKNOWN] * len(ids)
        self._place_last(end)

    def _place_last(self, end: int) -> None:
        """Bytes that were left out belong to the token before them."""
        if self._ends:
            self._ends[-1] = end
        else:
            self._start = end

    def _write_marker(self, ids: Sequence[int]) -> None:
        self.draft_ids += ids
        self._text.clear()
        self._target_ids.clear()
        self._ends.clear()
        self._first = len(self.draft_ids)
        self._start = self._covered = 0

    # The target's tokens

    def _read(self, drafted: Sequence[int]) -> tuple[bytes, int | None]:
        """The text up to the first marker, and the end of the target's that this marker is."""
        written = b""
        for id in drafted:
            text = self._drafter.token_bytes[id] if 0 <= id < len(self._drafter.token_bytes) else None
            if text is None:
                return written, self._target_ends.get(id)
            written += text
        return written, None

    def _encode_following(self, new: bytes) -> tuple[list[int], Outcome, bool]:
        """Tokens for ``new``, which follows the committed text, and whether they are all of it."""
        window, before = self._window()
        text = leading(before + new)
        size = len(text.encode())
        if size > len(before):
            ids = self._target.encode(text)
            is_exact = ids[: len(window)] == window
            ids = ids[len(window) :] if is_exact else self._following(before, ids)
            if ids:
                return ids, Outcome.EXACT if is_exact else Outcome.OFFSET, size == len(before) + len(new)
        text = leading(new)
        ids = self._target.encode(text) if text else []
        return ids, Outcome.MERGE if ids else Outcome.NONE, len(text.encode()) == len(new)

    def _window(self) -> tuple[list[int], bytes]:
        """The target's last tokens, from the start of a character on, and their bytes."""
        first = max(0, len(self._target_ids) - self._lookbehind)
        start = len(self._text) - len(self._target.bytes_of(self._target_ids[first:]))
        while first and not is_boundary(self._text, start):
            first -= 1
            start -= len(self._target.token_bytes[self._target_ids[first]] or b"")
        return self._target_ids[first:], bytes(self._text[start:])

    def _following(self, before: bytes, ids: list[int]) -> list[int]:
        """The ``ids`` that follow ``before``; none where one of them reaches across its end."""
        size = 0
        for count, id in enumerate(ids):
            if size >= len(before):
                return ids[count:] if self._target.bytes_of(ids[:count]) == before else []
            size += len(self._target.token_bytes[id] or b"")
        return []


def _ends_of(target: Vocabulary, drafter: Vocabulary, markers: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """The drafter's ends in the target's tokens: those of the same role, else the lowest."""
    found = dict.fromkeys(drafter.ends, min(target.ends)) if target.ends else {}
    for end in sorted(target.ends, reverse=True):
        mapped = markers.get(end)
        if mapped and drafter.token_bytes[mapped[0]] is None:
            found[mapped[0]] = end
    return found


def _common(before: Sequence[int], after: Sequence[int]) -> int:
    """How many of the first ids are the same."""
    count = 0
    for a, b in zip(before, after, strict=False):
        if a != b:
            break
        count += 1
    return count
