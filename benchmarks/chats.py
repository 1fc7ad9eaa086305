"""Chats to train small drafters with: questions that are parts of what Python's own library says of itself."""

import inspect
import json
import signal
import statistics
import subprocess
import textwrap
from pathlib import Path

MODULES = (statistics, textwrap, json, subprocess, inspect, signal)
LETTERS = 120
"""Of a question, at the most; half as many at the least."""


def write_chats(path: Path, count: int) -> None:
    """Write ``count`` rows to ``path``, for ``vllm-specext train``."""
    texts = [inspect.getdoc(thing) or "" for module in MODULES for _, thing in inspect.getmembers(module)]
    kept = [text[:LETTERS] for text in dict.fromkeys(texts) if len(text) > LETTERS // 2][:count]
    assert len(kept) == count
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in kept))
