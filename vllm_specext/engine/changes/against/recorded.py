"""Facts of a version as JSON: what our adapter asks of it, and nothing of vLLM's text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from vllm_specext.engine.changes.against.comparison import Adapter, Source
from vllm_specext.engine.changes.against.facts import Fact, Parameter


class Recorded:
    """What was recorded of a version. Asking for more raises ``LookupError``."""

    def __init__(self, file: Path) -> None:
        content = json.loads(file.read_text(encoding="utf-8"))
        self.version: str = content["version"]
        self._names: dict[str, dict[str, Any] | None] = content["names"]

    @property
    def paths(self) -> set[str]:
        return set(self._names)

    def get(self, path: str) -> Fact | None:
        if path not in self._names:
            raise LookupError(f"nothing is recorded on {path} of vLLM {self.version}")
        entry = self._names[path]
        if entry is None:
            return None
        parameters = entry.get("parameters")
        return Fact(
            entry["kind"],
            None if parameters is None else tuple(map(_parameter, parameters.split())),
            entry.get("body"),
            entry.get("settable", True),
        )


def recorded(adapter: Adapter, vllm: Source) -> str:
    """The JSON of what ``adapter`` asks of ``vllm``."""
    names = {path: _entry(vllm.get(path)) for path in sorted(adapter.asked())}
    lines = [f"  {json.dumps(path)}: {json.dumps(entry)}" for path, entry in names.items()]
    return f'{{\n "version": {json.dumps(vllm.version)},\n "names": {{\n' + ",\n".join(lines) + "\n }\n}\n"


def _entry(fact: Fact | None) -> dict[str, Any] | None:
    if fact is None:
        return None
    entry: dict[str, Any] = {"kind": fact.kind}
    if fact.parameters is not None:
        entry["parameters"] = " ".join(map(_text, fact.parameters))
    if fact.body is not None and fact.kind != "class":
        entry["body"] = fact.body
    return entry if fact.settable else entry | {"settable": False}


def _text(parameter: Parameter) -> str:
    """``name``, ``name=`` with a default, ``|name`` by name only, ``*name`` and ``**name``."""
    if parameter.kind in ("*", "**"):
        return str(parameter)
    return f"{'|' if parameter.kind else ''}{parameter.name}{'' if parameter.required else '='}"


def _parameter(text: str) -> Parameter:
    name = text.lstrip("*|").rstrip("=")
    marks = text[: len(text) - len(text.lstrip("*|"))]
    return Parameter(name, "k" if marks == "|" else marks, marks not in ("*", "**") and not text.endswith("="))
