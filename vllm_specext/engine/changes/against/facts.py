"""What is known of one name in a tree: whether it is there, its parameters, and a digest of its body.

A fact holds no source text, so facts of a version can be kept (``recorded.py``).
"""

from __future__ import annotations

import ast
import hashlib
from dataclasses import dataclass
from functools import cache

from vllm_specext.engine.changes.against.definitions import Definition, Definitions
from vllm_specext.engine.changes.against.syntax import FUNCTIONS, dotted_name, statements
from vllm_specext.engine.changes.against.tree import Tree, installed_tree

WITHOUT_SELF = ("classmethod",)
FIELDS = ("dataclass", "config")
"""Decorators that make a class's annotated names its parameters."""
RECORDS = ("NamedTuple", "Struct")
"""Base classes that do the same."""


@dataclass(frozen=True)
class Parameter:
    name: str
    kind: str = ""
    """``*`` and ``**`` for the rest of the arguments, ``k`` for one that is given by name only, otherwise empty."""
    required: bool = True

    def __str__(self) -> str:
        return f"{self.kind}{self.name}" if self.kind in ("*", "**") else self.name


@dataclass(frozen=True)
class Fact:
    kind: str
    """``function``, ``property``, ``class``, ``module`` or ``value``."""
    parameters: tuple[Parameter, ...] | None = None
    """``None`` where the source does not show them."""
    body: str | None = None
    """Digest of a function or class without its docstrings, comments and layout; of a Triton function with those that
    it calls."""
    settable: bool = True
    """False for a property without a setter."""

    @property
    def names(self) -> str | None:
        """The parameters' names as the guard writes them."""
        return None if self.parameters is None else " ".join(each.name for each in self.parameters)


class Facts:
    """Facts of a tree, each found when it is asked for."""

    def __init__(self, tree: Tree) -> None:
        self.version = tree.version
        self._definitions = Definitions(tree)
        self._known: dict[str, Fact | None] = {}

    def get(self, path: str) -> Fact | None:
        """The fact on what a dotted path stands for, ``None`` where the tree has nothing there."""
        if path not in self._known:
            found = self._definitions.find(path)
            self._known[path] = None if found is None else self._fact(found)
        return self._known[path]

    def _fact(self, found: Definition) -> Fact:
        node = found.node
        if found.is_module:
            return Fact("module")
        if isinstance(node, FUNCTIONS):
            decorators = decorator_names(node)
            parameters = of_function(node.args)
            if found.owner is not None and any(name in WITHOUT_SELF for name in decorators):
                parameters = parameters[1:]
            if any(name.endswith("property") for name in decorators):
                return Fact("property", parameters, digest(node), not _is_read_only(found, decorators))
            return Fact("function", parameters, self._with_helpers(found) if "jit" in decorators else digest(node))
        if isinstance(node, ast.ClassDef):
            return Fact("class", self._of_class(found), digest(node))
        return Fact("value")

    def _with_helpers(self, kernel: Definition) -> str:
        """The digest of a Triton function and of all those that it calls, which are compiled into it."""
        bodies: dict[int, str] = {}
        pending = [kernel]
        while pending:
            found = pending.pop(0)
            node = found.node
            if not isinstance(node, FUNCTIONS) or "jit" not in decorator_names(node) or id(node) in bodies:
                continue
            bodies[id(node)] = digest(node)
            for each in ast.walk(node):
                if isinstance(each, ast.Call) and isinstance(each.func, ast.Name):
                    helper = self._definitions.attribute(Definition(found.module, None, is_module=True), each.func.id)
                    pending += [] if helper is None else [helper]
        first, *helpers = bodies.values()
        return first if not helpers else hashlib.sha256(" ".join((first, *helpers)).encode()).hexdigest()[:12]

    def _of_class(self, found: Definition) -> tuple[Parameter, ...] | None:
        node = found.node
        assert isinstance(node, ast.ClassDef)
        made = self._definitions.attribute(found, "__init__")
        if made and isinstance(made.node, FUNCTIONS):
            return of_function(made.node.args)[1:]
        return self._fields(found)

    def _fields(self, found: Definition) -> tuple[Parameter, ...] | None:
        """What a class takes that has its ``__init__`` written for it. ``None`` where that cannot be seen."""
        node = found.node
        assert isinstance(node, ast.ClassDef)
        fields: dict[str, Parameter] = {}
        for base in self._definitions.bases(found):
            if base.node is not None:
                fields |= {each.name: each for each in self._fields(base) or ()}
        known = any(name in FIELDS for name in decorator_names(node)) or fields
        if not known and not any((dotted_name(base) or "").rpartition(".")[2] in RECORDS for base in node.bases):
            return None
        for each in node.body:
            if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and _is_field(each):
                fields[each.target.id] = Parameter(each.target.id, required=each.value is None)
        return tuple(fields.values())


@cache
def installed_facts() -> Facts | None:
    """Of the vLLM that this Python would import, ``None`` where there is none."""
    tree = installed_tree()
    return None if tree is None else Facts(tree)


def decorator_names(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[str]:
    """The last names of the decorators, called or not."""
    plain = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    return [each.attr if isinstance(each, ast.Attribute) else getattr(each, "id", "") for each in plain]


def of_function(arguments: ast.arguments) -> tuple[Parameter, ...]:
    """The parameters in their order."""
    positional = [*arguments.posonlyargs, *arguments.args]
    without_default = len(positional) - len(arguments.defaults)
    found = [Parameter(each.arg, "", place < without_default) for place, each in enumerate(positional)]
    if arguments.vararg:
        found.append(Parameter(arguments.vararg.arg, "*", False))
    for each, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        found.append(Parameter(each.arg, "k", default is None))
    if arguments.kwarg:
        found.append(Parameter(arguments.kwarg.arg, "**", False))
    return tuple(found)


def _is_field(node: ast.AnnAssign) -> bool:
    if "ClassVar" in ast.unparse(node.annotation):
        return False
    given = node.value.keywords if isinstance(node.value, ast.Call) else []
    return not any(each.arg == "init" and getattr(each.value, "value", None) is False for each in given)


def _is_read_only(found: Definition, decorators: list[str]) -> bool:
    if "cached_property" in decorators or found.owner is None or found.node is None:
        return "cached_property" not in decorators
    others = (each for each in statements(found.owner.body) if isinstance(each, FUNCTIONS))
    return not any(each.name == found.node.name and "setter" in decorator_names(each) for each in others)


def digest(node: ast.AST) -> str:
    """Twelve hexadecimal digits that stay the same when only docstrings, comments or layout change."""
    return hashlib.sha256(_flat(node).encode()).hexdigest()[:12]


def _flat(value: object) -> str:
    """A syntax tree as text, the same under every version of Python: fields that are empty are left out."""
    if isinstance(value, list):
        return "[" + ",".join(map(_flat, value)) + "]"
    if not isinstance(value, ast.AST):
        return repr(value)
    fields = dict(ast.iter_fields(value))
    if isinstance(value, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        fields["body"] = value.body[1:] if ast.get_docstring(value) is not None else value.body
    if isinstance(value, ast.Constant):
        fields.pop("kind", None)
    kept = {name: each for name, each in fields.items() if each is not None and each != []}
    return f"{type(value).__name__}({','.join(f'{name}={_flat(each)}' for name, each in kept.items())})"
