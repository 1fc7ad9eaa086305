"""Everything that we replace in vLLM, with the reason; ``vllm-specext doctor`` and ``docs/patches.md`` show it.

It is read from the marks (``@replaces``) in the source. Importing the marked modules would load most of vLLM, which
takes long, and cannot be done where vLLM is missing or broken, where ``doctor`` is needed most.
"""

import ast
import inspect
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from vllm_specext.engine.changes.replacements import Replacement, replaces

PACKAGE = Path(__file__).parents[2]
_MARK = replaces.__name__


@cache
def catalogue() -> tuple[Replacement, ...]:
    """Every replacement, in the order of files and lines."""
    return tuple(entry for file in sorted(PACKAGE.rglob("*.py")) for entry in marks_in(file))


def marks_in(file: Path, root: Path = PACKAGE) -> Iterator[Replacement]:
    source = file.read_text(encoding="utf-8")
    if f"@{_MARK}(" not in source:
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            for call in marks_of(node):
                wraps = any(argument.arg == "original" for argument in node.args.args)
                yield _entry(call, f"{file.relative_to(root).as_posix()}: {node.name}", wraps)


def marks_of(function: ast.FunctionDef) -> list[ast.Call]:
    """The ``@replaces(...)`` above a function."""
    decorators = (each for each in function.decorator_list if isinstance(each, ast.Call))
    return [call for call in decorators if isinstance(call.func, ast.Name) and call.func.id == _MARK]


def _entry(call: ast.Call, made_by: str, wraps: bool) -> Replacement:
    try:
        (target,) = (ast.literal_eval(argument) for argument in call.args)
        given = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    except ValueError as error:
        raise ValueError(f"{made_by}: the arguments of @{_MARK} must be literals: {error}") from None
    values: dict[str, Any] = {"signature": None, "kind": "replaced", "also": ()} | given
    return Replacement(target=target, made_by=made_by, wraps=wraps, **values)


def present(entry: Replacement) -> bool:
    """Whether vLLM has what is replaced. For an attribute that we add: whether there is an object to add it to."""
    try:
        return all(_has(target, entry.kind) for target in (entry.target, *entry.also))
    except Exception:  # whatever a broken installation raises
        return False


def _has(target: str, kind: str) -> bool:
    owner, _, attribute = target.rpartition(".")
    found = pkgutil.resolve_name(owner)
    return kind == "added" or hasattr(found, attribute) or (kind == "set" and _sets(found, attribute))


def _sets(owner: type, attribute: str) -> bool:
    """Whether instances have the attribute: as a field, or because the class or a base sets it on ``self``."""
    classes = [each for each in inspect.getmro(owner) if each.__module__ != "builtins"]
    if any(attribute in inspect.get_annotations(each) for each in classes):
        return True
    return any(re.search(rf"\bself\.{attribute}\b\s*(:[^=\n]+)?=[^=]", inspect.getsource(each)) for each in classes)
