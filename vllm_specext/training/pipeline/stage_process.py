"""A stage's side of its process: what it says to the command, one JSON object a line, and how it ends.

Standard output belongs to these lines. Whatever else is printed, by libraries or by the system, goes where standard
error goes, which is the stage's log.
"""

import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from safetensors import SafetensorError

from vllm_specext.errors import ConfigurationError

DONE, REFUSED, INTERRUPTED, TRANSIENT = 0, 2, 3, 75
"""How a stage, and the command, may end: all is there; something has to be put right first, and a sentence says what;
interrupted, to go on with the same command; something else went wrong, which may not happen again."""

SAY, REFUSAL = "say", "refused"

Say = Callable[[str], None]


def run_stage(work: Callable[[Path, Say], None]) -> NoReturn:
    """Do ``work`` in the run's folder, which is the first argument, and end the process."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    is_first = os.environ.get("RANK", "0") == "0"

    def tell(kind: str, text: str) -> None:
        print(json.dumps({kind: text}), file=out, flush=True)

    def say(text: str) -> None:
        if is_first:
            tell(SAY, text)

    try:
        work(Path(sys.argv[1]), say)
    except ConfigurationError as error:
        tell(REFUSAL, str(error))
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except (OSError, SafetensorError) as error:
        # A full disk, a file system that is gone for a moment.
        traceback.print_exc()
        why = getattr(error, "strerror", None) or " ".join(str(error).split()) or type(error).__name__
        tell(SAY, f"the system refused a file: {why}")
        sys.exit(TRANSIENT)
    sys.exit(DONE)


def end_on_sigterm() -> None:
    """Let SIGTERM end a stage that has nothing to save as an interrupt does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
