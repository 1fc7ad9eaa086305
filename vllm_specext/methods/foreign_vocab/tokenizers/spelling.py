"""How vocabularies spell the bytes of their tokens."""

import re
from collections.abc import Callable

SPACE = "▁"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of the 256 bytes: printable ones stand for themselves, the others follow from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(0x100 + i): b for i, b in enumerate(others)}


_BYTES = {ord(character): chr(byte) for character, byte in _byte_alphabet().items()}
# Characters below U+0100 that spell no byte become some that Latin-1 has not.
_TABLE = dict.fromkeys(range(0x100), "\uffff") | _BYTES


def from_byte_level(token: str) -> bytes:
    try:
        return token.translate(_TABLE).encode("latin-1")
    except UnicodeEncodeError:
        return token.encode()  # what the byte-level decoder does too


def from_pieces(token: str) -> bytes:
    """The bytes of a token as SentencePiece spells it."""
    if re.fullmatch("<0x[0-9A-F]{2}>", token):
        return bytes([int(token[3:5], 16)])
    return token.replace(SPACE, " ").encode()


def from_latin(token: str) -> bytes:
    """A character for a byte, as ByT5 has it; ``ValueError`` for any other."""
    return token.encode("latin-1")


SPELLINGS: tuple[Callable[[str], bytes], ...] = (from_byte_level, from_latin, from_pieces)


def is_text(added: str) -> bool:
    """Whether an added token stands for what it looks like: white space or one character, and never a control token.

    GPT-NeoX has added runs of spaces, and Gemma newlines.
    """
    return len(added) == 1 or added.replace(SPACE, " ").isspace()
