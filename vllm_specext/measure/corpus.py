"""The text that the bundled models are trained and evaluated on.

Two kinds, both found on any machine that has this project's dependencies installed:

* ``code``: the Python standard library's sources, without its tests;
* ``prose``: the language reference that ships as ``pydoc_data.topics``, and the long docstrings of numpy, torch, sympy
and
  networkx. A third of the docstrings are wrapped as a chat turn, so that the chat template's markers get trained.

A file is held out when the hash of its name says so; all documents that come from one file are on the same side.
"""

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["code", "prose"]

END_OF_TEXT = "<|endoftext|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END_OF_TURN = "<|end|>"
SPECIAL_TOKENS = (END_OF_TEXT, USER, ASSISTANT, END_OF_TURN)

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ ('" + ASSISTANT + "' if message['role'] == 'assistant' else '" + USER + "') + '\n' }}"
    "{{ message['content'] + '" + END_OF_TURN + "\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + ASSISTANT + "\n' }}{% endif %}"
)
"""Renders what ``as_chat`` writes. Line breaks stand in expressions, since templates drop those that follow a block."""

DOCSTRING_PACKAGES = ("numpy", "torch", "sympy", "networkx")
MIN_DOCSTRING = 300
MAX_DOCUMENT = 60_000
"""Longer files are mostly tables (Unicode, HTML entities), which teach nothing."""


@dataclass(frozen=True)
class Document:
    kind: Kind
    source: str
    text: str

    @property
    def held_out(self) -> bool:
        return hashlib.sha256(self.source.encode()).digest()[0] < 6


def documents() -> Iterator[Document]:
    """Every document, in an order that depends on the installed files alone."""
    yield from _standard_library()
    yield from _language_reference()
    for package in DOCSTRING_PACKAGES:
        yield from _docstrings(package)


def _standard_library() -> Iterator[Document]:
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if any(part in {"site-packages", "test", "tests", "idle_test", "lib2to3", "pydoc_data"} for part in path.parts):
            continue
        text = path.read_text(encoding="utf-8", errors="ignore")
        if 200 < len(text) < MAX_DOCUMENT:
            yield Document("code", f"stdlib/{name}", text)


def _language_reference() -> Iterator[Document]:
    from pydoc_data import topics

    for name, text in sorted(topics.topics.items()):
        yield Document("prose", f"topics/{name}", text[:MAX_DOCUMENT])


def _docstrings(package: str) -> Iterator[Document]:
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return
    root = Path(next(iter(spec.submodule_search_locations)))
    for path in sorted(root.rglob("*.py")):
        if "tests" in path.parts or "testing" in path.parts:
            continue
        try:
            tree = ast.parse(path.read_text(encoding="utf-8", errors="ignore"))
        except (SyntaxError, ValueError):
            continue
        source = f"{package}/{path.relative_to(root).as_posix()}"
        for node in ast.walk(tree):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = ast.get_docstring(node)
            if text is None or len(text) < MIN_DOCSTRING:
                continue
            name = f"{package}.{getattr(node, 'name', path.stem)}"
            if hashlib.sha256(f"{source}:{name}".encode()).digest()[0] % 3 == 0:
                text = as_chat(f"What does {name} do?", text)
            yield Document("prose", source, text[:MAX_DOCUMENT])


def as_chat(question: str, answer: str) -> str:
    """One turn each, as the chat template renders it."""
    return f"{USER}\n{question}{END_OF_TURN}\n{ASSISTANT}\n{answer}{END_OF_TURN}\n"
