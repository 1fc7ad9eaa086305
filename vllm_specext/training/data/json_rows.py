"""Rows of JSON: a value on each line, or a list of all of them.

They are read by Python's own ``json``, and not by ``datasets``, which makes one table of all rows: every message would
have the keys of all others, tools the parameters of all other tools, and text beside parts would be refused.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from vllm_specext.errors import ConfigurationError

MAX_LINE = 2**24
"""Bytes of the longest line that is read."""

MAX_LIST = 2**31
"""Bytes of the longest file that is one list, which is read at once."""

PEEKED = 1024
"""Bytes, at the beginning of a file, in which a list has to begin."""

Numbered = Iterator[tuple[str, dict[str, Any]]]
"""Where each row is, for messages, and the row."""


def json_rows(path: Path) -> Numbered:
    """The rows of a file. ``ConfigurationError`` names the line that is none."""
    try:
        with path.open("rb") as file:
            start = file.read(PEEKED).lstrip()[:1]
            file.seek(0)
            yield from _listed(file, path) if start == b"[" else _lines(file, path)
    except OSError as error:
        raise ConfigurationError(f"{path} cannot be read ({error.strerror or type(error).__name__}).") from None


def _lines(file: BinaryIO, path: Path) -> Numbered:
    number = 0
    while line := file.readline(MAX_LINE + 1):
        number += 1
        where = f"{path} line {number}"
        if len(line) > MAX_LINE:
            raise ConfigurationError(f"{where} has more than {MAX_LINE} bytes; expected at most as many.")
        if line.strip():
            yield where, _row(_parsed(line, where), where)


def _listed(file: BinaryIO, path: Path) -> Numbered:
    content = file.read(MAX_LIST + 1)
    if len(content) > MAX_LIST:
        raise ConfigurationError(
            f"{path} is one list of more than {MAX_LIST} bytes; expected a smaller one, or a row on each line."
        )
    rows = _parsed(content, str(path))
    for number, row in enumerate(rows, 1):
        where = f"{path} row {number}"
        yield where, _row(row, where)


def _parsed(content: bytes, where: str) -> Any:
    try:
        return json.loads(content)
    except UnicodeDecodeError:
        raise ConfigurationError(f"{where} is not text in UTF-8.") from None
    except (ValueError, RecursionError):
        raise ConfigurationError(f"{where} is not JSON.") from None


def _row(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{where} is a {type(value).__name__}; expected an object with keys.")
    return value
