"""How an error that ends the program is shown: a wrong option in one sentence, all else as before."""

import sys
from collections.abc import Callable
from types import TracebackType

from pydantic import ValidationError

from vllm_specext.engine.changes.replacements import replaces
from vllm_specext.engine.changes.wrapping import wrap
from vllm_specext.errors import ConfigurationError


def show_errors_in_one_line() -> None:
    wrap(sys, "excepthook", _excepthook)


@replaces(
    "sys.excepthook",
    name="error display",
    why="a wrong option deserves a sentence, not a traceback",
    how="wrapped: an uncaught ConfigurationError is printed as one line, all else goes to the previous hook",
    upstream="none: Python's own hook",
    until="always",
)
def _excepthook(original: Callable) -> Callable:
    def excepthook(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
        ours = _inside_validation(error) or error
        if isinstance(ours, ConfigurationError):
            print(f"error: {ours}", file=sys.stderr)
        else:
            original(kind, error, traceback)

    return excepthook


def _inside_validation(error: BaseException) -> object:
    """What a check raised while pydantic built a configuration, or ``None``."""
    return error.errors()[0].get("ctx", {}).get("error") if isinstance(error, ValidationError) else None
