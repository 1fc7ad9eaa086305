"""How often a target's tokens stand in texts, and the file of the most frequent ones that a drafter can be given.

Texts are read piece by piece, so that their size does not matter. A file whose name ends in ``.jsonl`` has a JSON
value on each line, of which the strings under ``text``, ``content`` and ``value`` count, wherever they are; of other
files all is text. Needs no torch.
"""

import codecs
import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, BinaryIO

from vllm_specext.errors import ConfigurationError
from vllm_specext.whole_files import whole

IDS, VOCAB_SIZE = "ids", "vocab_size"
"""Keys of the file."""

PIECE = 2**16
"""Bytes of a file that are read at once, and on to the end of the line, but no further than as many bytes more."""

MAX_ROW = 2**26
"""Bytes of the longest line in a ``.jsonl`` file that is read."""

BATCH = 32
"""Pieces that are encoded at once, on several cores."""

SPOKEN = ("text", "content", "value")
"""Keys of what is said, in files of texts and of chats."""

Encode = Callable[[Sequence[str]], list[list[int]]]


def count(texts: Iterable[str], encode_batch: Encode) -> Counter[int]:
    """How often each id stands in ``texts``."""
    found: Counter[int] = Counter()
    pieces = iter(texts)
    while batch := list(islice(pieces, BATCH)):
        for ids in encode_batch(batch):
            found.update(ids)
    return found


def pieces(file: BinaryIO, path: Path) -> Iterator[str]:
    """The text in ``file``, which is open at ``path``. Raises ``ConfigurationError``."""
    return _said(file, path) if path.suffix == ".jsonl" else _as_it_stands(file, path)


def _as_it_stands(file: BinaryIO, path: Path) -> Iterator[str]:
    decoder = codecs.getincrementaldecoder("utf-8")()
    while read := file.read(PIECE):
        # A token hardly ever goes on over the end of a line.
        read += file.readline(PIECE)
        yield _decoded(decoder.decode, read, path)
    _decoded(lambda rest: decoder.decode(rest, final=True), b"", path)


def _decoded(decode: Callable[[bytes], str], read: bytes, path: Path) -> str:
    try:
        return decode(read)
    except UnicodeDecodeError:
        raise ConfigurationError(f"--text is {str(path)!r}, which is not text in UTF-8.") from None


def _said(file: BinaryIO, path: Path) -> Iterator[str]:
    number = 0
    while line := file.readline(MAX_ROW + 1):
        number += 1
        if len(line) > MAX_ROW:
            raise ConfigurationError(f"--text is {str(path)!r}, whose line {number} has more than {MAX_ROW} bytes.")
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise ConfigurationError(f"--text is {str(path)!r}, whose line {number} is not JSON.") from None
        yield from strings(row)


def strings(row: Any) -> Iterator[str]:
    """What is said in a JSON value."""
    waiting = [row]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            yield from (text for key in SPOKEN if isinstance(text := value.get(key), str))
            waiting.extend(reversed(value.values()))
        elif isinstance(value, list):
            waiting.extend(reversed(value))


def ordered(counts: Counter[int], special: Collection[int]) -> list[int]:
    """The ``special`` ids, which are always drafted from, and then those that were counted, the most frequent first;
    of two as frequent the lower."""
    others = sorted(counts.keys() - set(special), key=lambda id: (-counts[id], id))
    return [*sorted(special), *others]


def coverage(ids: Sequence[int], counts: Counter[int]) -> list[float]:
    """The share of the counted tokens that the first 0, 1, 2, ... of ``ids`` are."""
    total = counts.total()
    return [so_far / total for so_far in accumulate((counts[id] for id in ids), initial=0)]


def write(path: Path, target: str, vocab_size: int, ids: Sequence[int], counts: Counter[int]) -> None:
    """Write the ``ids`` for a target of ``vocab_size`` tokens. Who reads ``path`` meanwhile sees the file before."""
    content = {"target": target, VOCAB_SIZE: vocab_size, "counted": counts.total(), IDS: list(ids)}
    with whole(path) as part:
        part.write_text(json.dumps(content) + "\n", encoding="utf-8")
