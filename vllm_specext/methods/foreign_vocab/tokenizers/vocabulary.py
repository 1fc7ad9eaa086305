"""A tokenizer as a table of bytes and an encoder of ordinary tokens.

An ordinary token is the bytes that it adds to a text; special, added and control tokens are *markers* and have none.
``encode`` takes any text as text: what spells a marker out becomes ordinary tokens, and nothing is added around it.
Whether texts survive that (``exact``) is tried on samples when the tokenizer is read. A dummy space that a tokenizer
has written before a text is a byte of that text.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from vllm_specext.errors import ConfigurationError
from vllm_specext.methods.foreign_vocab.tokenizers.family import Family, name_of
from vllm_specext.methods.foreign_vocab.tokenizers.fast import read_fast
from vllm_specext.methods.foreign_vocab.tokenizers.native import read_native

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SAMPLES = (
    "def area(self, r: float) -> float:\n    if r < 0:\n        raise ValueError(f'{r} < 0')\n\n    return 3.14 * r**2",
    "Größe, naïveté, señor – “déjà vu” costs 1,234.50 € at 7:45 p.m.; isn't it?",
    "今天天气很好，我们一起去公园散步。机器学习需要数据！",
    "Nice 🎉👩🏽‍🚀 work 🇫🇷❤️",
    "  two\n    four\n\tone\n\t\ttwo  \n",
    "one\r\ntwo\n\n\nthree\r\n\r\nfour\n",
    "lead",
    " lead",
)


class Vocabulary:
    def __init__(self, family: Family, *, size: int, ends: Iterable[int]) -> None:
        self.ends = frozenset(end for end in ends if 0 <= end < size)
        self.markers = {spelling: id for spelling, id in family.markers.items() if id < size}
        hidden = self.ends | frozenset(self.markers.values())
        self.token_bytes: tuple[bytes | None, ...] = tuple(
            None if id in hidden else family.token_bytes.get(id) for id in range(size)
        )
        self._ordinary = frozenset(id for id, known in enumerate(self.token_bytes) if known is not None)
        self._spellings = {id: spelling for spelling, id in family.markers.items()}
        self._encode_batch = family.encode_batch
        self.difference = self._find_difference()
        self.exact = self.difference is None

    def encode(self, text: str) -> list[int]:
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        encoded = self._encode_batch(texts)
        return [
            ids if self._ordinary.issuperset(ids) else self._encode_ordinary(text, ids)
            for text, ids in zip(texts, encoded, strict=True)
        ]

    def is_marker(self, id: int | None) -> bool:
        return id is not None and id < len(self.token_bytes) and self.token_bytes[id] is None

    def bytes_of(self, ids: Iterable[int]) -> bytes:
        """The text of ordinary tokens; markers add nothing."""
        return b"".join(self.token_bytes[id] or b"" for id in ids)

    def _encode_ordinary(self, text: str, ids: Sequence[int]) -> list[int]:
        """``ids``, for ``text``, have markers: cut their spellings apart; what is not ordinary then is left out."""
        spellings = {self._spellings[id] for id in ids if id in self._spellings}
        cuts = sorted({match.start() + 1 for s in spellings for match in re.finditer(re.escape(s), text)})
        parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        return [id for ids in self._encode_batch(parts) for id in ids if id in self._ordinary]

    def _find_difference(self) -> str | None:
        for sample, ids in zip(SAMPLES, self.encode_batch(SAMPLES), strict=True):
            if (found := self.bytes_of(ids)) != sample.encode():
                return f"{sample!r} becomes {found.decode(errors='backslashreplace')!r}"
        return None


def read_vocabulary(tokenizer: "PreTrainedTokenizerBase", *, size: int, ends: Iterable[int]) -> Vocabulary:
    """``size``: rows of the model's embedding; ids at or beyond it do not exist. ``ends``: ids that end a text."""
    is_fast = hasattr(getattr(tokenizer, "backend_tokenizer", None), "to_str")
    family = read_fast(tokenizer) if is_fast else read_native(tokenizer, SAMPLES)
    specials = [id for id in tokenizer.all_special_ids if id is not None]
    for spelling, id in zip(tokenizer.convert_ids_to_tokens(specials), specials, strict=True):
        family.markers.setdefault(spelling, id)
        family.token_bytes.pop(id, None)
    vocabulary = Vocabulary(family, size=size, ends=ends)
    if not any(vocabulary.token_bytes):
        raise ConfigurationError(f"{name_of(tokenizer)} has no token of text below id {size}.")
    return vocabulary
