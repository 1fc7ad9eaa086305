"""Prompt files: SPEED-Bench, MT-Bench, Spec-Bench, GSM8K, HumanEval and a user's own. They are read, never shipped.

The name of a row's key says what it holds: ``messages`` (SPEED-Bench) is a chat, ``turns`` (MT-Bench, Spec-Bench) the
user's part of one and ``question`` (GSM8K) a single message of the user's, all asked through the target's chat
template; ``prompt`` (HumanEval) and ``text`` are beginnings that the target goes on with as they are. The task is a
row's ``category``, or else the file's name.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vllm_specext.bench.prompts import ROLES, Message, Prompt, bundled, first_of_each, open_places, question
from vllm_specext.errors import ConfigurationError

KEYS = ("messages", "turns", "question", "prompt", "text")
"""The first that a row has is read."""
PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""What SPEED-Bench has in place of the texts that its authors may not give away."""


def load(paths: Sequence[Path], per_task: int) -> list[Prompt]:
    """The first ``per_task`` prompts of every task in the files, or of the bundled ones where there is no path."""
    found = [prompt for path in paths for prompt in read(path)] if paths else bundled()
    return first_of_each(found, per_task)


def read(path: Path) -> list[Prompt]:
    """The prompts of a JSON or JSON Lines file, one of each row."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"--prompts is {str(path)!r}, which cannot be read ({type(error).__name__})."
        ) from None
    return [prompt(row, path, number) for number, row in enumerate(rows(text, path), start=1)]


def rows(text: str, path: Path) -> list[Any]:
    try:
        found = json.loads(text)
        found = found if isinstance(found, list) else [found]
    except (ValueError, RecursionError):
        try:
            found = [json.loads(line) for line in text.splitlines() if line.strip()]
        except (ValueError, RecursionError):
            raise ConfigurationError(f"--prompts is {str(path)!r}, which is neither JSON nor JSON Lines.") from None
    if not found:
        raise ConfigurationError(f"--prompts is {str(path)!r}, which has no rows.")
    return found


def prompt(row: Any, path: Path, number: int) -> Prompt:
    where = f"--prompts {str(path)!r}, row {number},"
    key = next((key for key in KEYS if isinstance(row, dict) and row.get(key)), None)
    if key is None:
        raise ConfigurationError(f"{where} has no prompt: none of {', '.join(KEYS)} holds anything.")
    task, value = task_of(row, path, where), row[key]
    if key == "messages":
        return Prompt(task, chat=chat(value, where), where=where)
    if key == "turns":
        turns = value if isinstance(value, list) else [value]
        return question(task, *(text_of(turn, f"turns[{i}]", where) for i, turn in enumerate(turns)), where=where)
    text = text_of(value, key, where)
    return question(task, text, where=where) if key == "question" else Prompt(task, text, where=where)


def task_of(row: dict[str, Any], path: Path, where: str) -> str:
    task = row.get("category") or path.stem
    if not isinstance(task, str | int):
        raise ConfigurationError(f"{where} has {shortened(task)} as category, but it must be a name.")
    return str(task)


def chat(value: Any, where: str) -> tuple[Message, ...]:
    if not isinstance(value, list):
        raise ConfigurationError(f"{where} has {shortened(value)} as messages, but it must be a list of messages.")
    messages = tuple(message(one, f"messages[{i}]", where) for i, one in enumerate(value))
    if not open_places(messages):
        raise ConfigurationError(
            f"{where} has messages with nothing to ask: a message of the user's must be there that no answer follows."
        )
    return messages


def message(value: Any, key: str, where: str) -> Message:
    role = value.get("role") if isinstance(value, dict) else None
    if role not in ROLES:
        raise ConfigurationError(
            f"{where} has {shortened(value if role is None else role)} as {key}{'.role' if role else ''}, but it must "
            f"be {'one of ' + ', '.join(ROLES) if role else 'an object with role and content'}."
        )
    return Message(role, text_of(value.get("content"), f"{key}.content", where))


def text_of(value: Any, key: str, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{where} has {shortened(value)} as {key}, but it must be a text.")
    if PLACEHOLDER in value:
        raise ConfigurationError(
            f"{where} has SPEED-Bench's placeholder as {key}: run the prepare.py that comes with SPEED-Bench first, "
            "which fetches the texts."
        )
    return value


def shortened(value: Any, most: int = 40) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= most else text[:most] + "..."
