"""The library of the bodies in C++, loaded at its first use: at a start, while vLLM measures what a step takes."""

import ctypes
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from vllm_specext.kernels.native.compiler import CompilationError, compiled

logger = logging.getLogger(f"vllm.{__name__}")  # a child of vLLM's logger, whose handlers and level it shares

SWITCH = "VLLM_SPECEXT_NATIVE"
"""The environment variable that switches the bodies in C++ off where it is 0."""

LONG = ("tree_attention", "best_tokens", "compact", "gather")
"""Bodies that other Python threads need not wait for. For the others it takes longer to let them in."""


class Library:
    """Loads the library at ``path``. Raises ``OSError`` for a file that is none."""

    def __init__(self, path: Path) -> None:
        self._waiting, self._others_run = ctypes.PyDLL(str(path)), ctypes.CDLL(str(path))

    def body(self, name: str) -> Callable[[Any], int]:
        """The body called ``name``, of an array of words; returns its status."""
        found = getattr(self._others_run if name in LONG else self._waiting, name)
        found.argtypes, found.restype = [ctypes.c_void_p], ctypes.c_int64
        return found


@cache
def load() -> Library | str:
    """The library, or why there is none."""
    if os.environ.get(SWITCH) == "0":
        return f"switched off by {SWITCH}"
    found: list[Library] = []
    try:
        compiled(lambda path: found.append(Library(path)))
    except (CompilationError, OSError) as error:
        reason = str(error) if isinstance(error, CompilationError) else f"it cannot be loaded ({type(error).__name__})"
        logger.info("Kernels run in torch; with a C++ compiler they are faster on a CPU: %s", reason)
        return reason
    return found[0]


def library() -> Library | None:
    found = load()
    return found if isinstance(found, Library) else None
