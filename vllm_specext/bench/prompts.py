"""Prompts with the task that each belongs to: MT-Bench, HumanEval, GSM8K and Spec-Bench files, or the bundled ones.

What a file's rows are called says what they are: ``turns`` (MT-Bench, Spec-Bench; the first turn is asked) and
``question`` (GSM8K) are questions, asked through the target's chat template if it has one; ``prompt`` (HumanEval) and
``text`` are beginnings that the target goes on with as they are. The task is a row's ``category``, or else the file's
name.
"""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.measure.bundled import bundled_prompts

QUESTIONS, BEGINNINGS = ("turns", "question"), ("prompt", "text")


@dataclass(frozen=True)
class Prompt:
    task: str
    text: str
    question: bool = False
    """Whether it is asked through the chat template."""


def load(paths: Sequence[Path], per_task: int) -> list[Prompt]:
    """The first ``per_task`` prompts of every task in the files, or of the bundled ones where there is no path."""
    if paths:
        found = [prompt for path in paths for prompt in read(path)]
    else:
        found = [Prompt(row["kind"], row["text"]) for row in bundled_prompts()]
    return first_of_each(found, per_task)


def first_of_each(prompts: Iterable[Prompt], per_task: int) -> list[Prompt]:
    """The first ``per_task`` prompts of every task, task by task in the order in which the tasks appear."""
    seen: Counter[str] = Counter()
    kept = []
    for prompt in prompts:
        seen[prompt.task] += 1
        if seen[prompt.task] <= per_task:
            kept.append(prompt)
    tasks = list(seen)
    return sorted(kept, key=lambda prompt: tasks.index(prompt.task))


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
    if isinstance(row, dict):
        task = str(row.get("category") or path.stem)
        for key in (*QUESTIONS, *BEGINNINGS):
            value = row.get(key)
            if key == "turns" and isinstance(value, list) and value:
                value = value[0]
            if isinstance(value, str) and value:
                return Prompt(task, value, question=key in QUESTIONS)
    allowed = ", ".join((*QUESTIONS, *BEGINNINGS))
    raise ConfigurationError(f"--prompts {str(path)!r} has no prompt in row {number}: none of {allowed} holds a text.")


class Rendering:
    """Prompts as the target is asked them: ids for engines and our client, text for ``vllm bench serve``."""

    def __init__(self, target: str) -> None:
        from transformers import AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(target)
        except Exception as error:  # the hub client and the loaders raise many kinds
            raise ConfigurationError(
                f"--target is {target!r}, whose tokenizer cannot be loaded ({type(error).__name__})."
            ) from None

    def text(self, prompt: Prompt) -> str:
        if not (prompt.question and self.tokenizer.chat_template):
            return prompt.text
        turns = [{"role": "user", "content": prompt.text}]
        return str(self.tokenizer.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))

    def ids(self, prompt: Prompt) -> list[int]:
        text = self.text(prompt)
        # A chat template writes the special tokens itself.
        return list(self.tokenizer.encode(text, add_special_tokens=text is prompt.text))
