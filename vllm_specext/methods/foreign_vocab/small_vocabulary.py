"""Which drafters SLRS is made for: those that write bytes, or little more. Needs no torch."""

from collections.abc import Sequence

LARGEST = 4096
"""Most tokens that a drafter may have. A vocabulary of whole words has many spellings for every target token, each of
them a node to run: that of Qwen2 has 14 for "hello" (arXiv 2502.05202)."""

EVERYDAY = bytes(range(32, 127)) + b"\n"
"""Bytes without which hardly any text can be spelled."""


def why_unsuitable(drafter: Sequence[bytes | None]) -> str | None:
    """Why SLRS makes no sense with a drafter of these tokens, as one sentence; ``None`` where it does."""
    tokens = {text for text in drafter if text}
    if len(tokens) > LARGEST:
        return (
            f"method 'slrs' is for drafters that write bytes or at most {LARGEST} tokens, and this one has "
            f"{len(tokens)}; use 'slem', which drafts with any vocabulary."
        )
    missing = [chr(byte) for byte in EVERYDAY if bytes([byte]) not in tokens]
    if missing:
        return (
            f"method 'slrs' needs a drafter that has a token for every ASCII character, and this one has none for "
            f"{missing[0]!r}; use 'slem', which drafts with any vocabulary."
        )
    return None
