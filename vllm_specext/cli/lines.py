"""Text that is never cut: whole lines in a pipe, lines that break between words on a terminal."""

import shutil
import sys
import textwrap

import rich
from rich.text import Text


def show(text: str, indent: int = 0, style: str = "") -> None:
    """Print ``text`` as one line, ``indent`` spaces from the left, in one of rich's styles.

    On a terminal it continues on further lines, which are indented more. A word that is wider than the terminal stays
    whole, because half a key cannot be copied.
    """
    margin = " " * indent
    line = margin + " ".join(text.split())
    if sys.stdout.isatty():
        line = textwrap.fill(
            line,
            shutil.get_terminal_size().columns,
            subsequent_indent=f"{margin}    ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    rich.get_console().print(Text(line, style), soft_wrap=True)
