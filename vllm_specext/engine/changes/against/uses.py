"""What our own source takes from vLLM by name: imports, attributes of what is imported, calls, and base classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from vllm_specext.engine.changes.against.definitions import Definition, Definitions
from vllm_specext.engine.changes.against.syntax import FUNCTIONS, assigned, dotted_name, set_on_self
from vllm_specext.engine.changes.against.tree import PACKAGE, Module, Tree

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Call:
    """The arguments of a call, as far as the source shows them."""

    positional: int
    keywords: tuple[str, ...]
    is_whole: bool
    """Whether there is neither ``*`` nor ``**`` among them."""


@dataclass(frozen=True)
class Use:
    path: str
    """Dotted, below ``vllm``."""
    place: str
    """File and line of ours."""
    call: Call | None = None
    instead: str | None = None
    """What is imported where ``path`` cannot be."""


@dataclass(frozen=True)
class Inheritance:
    """A class of ours and what it gets from vLLM."""

    place: str
    name: str
    bases: tuple[str, ...]
    """vLLM's classes that it is derived from, nearest first."""
    defines: frozenset[str]
    """Names that its body binds."""
    sets: frozenset[str]
    """Attributes that its methods set on ``self``."""


@dataclass
class _Scope:
    imports: dict[str, str] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def bind(self, name: str, path: str) -> None:
        self.imports[name] = path


def uses(tree: Tree) -> list[Use]:
    """Everything that is imported from vLLM, used as its attribute or called by name, in a tree of ours."""
    found: list[Use] = []
    for name in tree.modules:
        module = tree.module(name)
        assert module is not None
        reader = _Reader(module, found)
        for node in module.body:
            reader.visit(node)
    return found


def inheritances(tree: Tree) -> list[Inheritance]:
    """The classes of ours that are derived from vLLM's, directly or not."""
    definitions, found = Definitions(tree), []
    for name in tree.modules:
        module = tree.module(name)
        assert module is not None
        for node in module.body:
            owner = definitions.find(f"{name}:{node.name}") if isinstance(node, ast.ClassDef) else None
            if isinstance(node, ast.ClassDef) and owner and (bases := tuple(vllm_bases(definitions, owner))):
                plain = {each.name for each in node.body if isinstance(each, (*FUNCTIONS, ast.ClassDef))}
                names = plain | {each for statement in node.body for each in assigned(statement)}
                place = f"{file_of(module)}:{node.lineno}"
                own = Inheritance(place, node.name, bases, frozenset(names), frozenset(set_on_self(node) - names))
                found.append(own)
    return found


def vllm_bases(definitions: Definitions, owner: Definition) -> Iterator[str]:
    """vLLM's classes that a class of ours is derived from, directly or not, nearest first."""
    pending = list(definitions.bases(owner))
    while pending:
        base = pending.pop(0)
        if base.foreign is None:
            pending = [*definitions.bases(base), *pending]
        elif base.foreign.partition(".")[0] == PACKAGE:
            yield base.foreign


def file_of(module: Module) -> str:
    """Where a module of ours stands below its package."""
    return module.name.partition(".")[2].replace(".", "/") + ("/__init__.py" if module.is_package else ".py")


class _Reader(ast.NodeVisitor):
    """Follows names through the functions of a file, so that a parameter hides an import of the same name."""

    def __init__(self, module: Module, found: list[Use]) -> None:
        self._module, self._found = module, found
        self._scopes = [_Scope()]
        self._instead: dict[str, str] = {}
        """What is imported where a path cannot be."""

    def visit_Try(self, node: ast.Try) -> None:
        """``try: from vllm.new import name`` with ``except ImportError: from vllm.old import name``."""
        others = [each for handler in node.handlers for each in handler.body if isinstance(each, ast.ImportFrom)]
        caught = " ".join(ast.unparse(handler.type) for handler in node.handlers if handler.type is not None)
        if not others or ("ImportError" not in caught and "ModuleNotFoundError" not in caught):
            self.generic_visit(node)
            return
        fallbacks = {
            alias.asname or alias.name: f"{self._module.absolute(other)}.{alias.name}"
            for other in others
            for alias in other.names
        }
        for each in node.body:
            if isinstance(each, ast.ImportFrom):
                for alias in each.names:
                    if (instead := fallbacks.get(alias.asname or alias.name)) is not None:
                        self._instead[f"{self._module.absolute(each)}.{alias.name}"] = instead
            self.visit(each)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            if alias.name.partition(".")[0] == PACKAGE:
                self._add(alias.name, node)
                self._scopes[-1].bind(alias.asname or PACKAGE, alias.name if alias.asname else PACKAGE)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        source = self._module.absolute(node)
        if source.partition(".")[0] == PACKAGE:
            for alias in node.names:
                name, path = alias.asname or alias.name, f"{source}.{alias.name}"
                self._add(path, node)
                self._scopes[-1].bind(name, path)

    def visit_FunctionDef(self, node: Function) -> None:
        for outside in (*node.decorator_list, *node.args.defaults, *(each for each in node.args.kw_defaults if each)):
            self.visit(outside)
        arguments = (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.vararg, node.args.kwarg)
        bound = {each.arg for each in arguments if each}
        stored = (each for part in node.body for each in ast.walk(part) if isinstance(each, ast.Name))
        self._scopes.append(_Scope(names=bound | {each.id for each in stored if isinstance(each.ctx, ast.Store)}))
        for each in node.body:
            self.visit(each)
        self._scopes.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Call(self, node: ast.Call) -> None:
        if (path := self._path(node.func)) is not None:
            whole = not any(isinstance(each, ast.Starred) for each in node.args) and all(
                each.arg for each in node.keywords
            )
            given = tuple(each.arg for each in node.keywords if each.arg)
            positional = sum(not isinstance(each, ast.Starred) for each in node.args)
            self._add(path, node, Call(positional, given, whole))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        path = self._path(node)
        if path is None:
            self.generic_visit(node)
        elif isinstance(node.ctx, ast.Load):
            self._add(path, node)

    def _path(self, node: ast.expr) -> str | None:
        """The path of ``imported.attribute`` or ``imported``; ``None`` for all else."""
        first, _, rest = (dotted_name(node) or "").partition(".")
        for scope in reversed(self._scopes):
            if first in scope.imports:
                return f"{scope.imports[first]}.{rest}" if rest else scope.imports[first]
            if first in scope.names:
                return None
        return None

    def _add(self, path: str, node: ast.stmt | ast.expr, call: Call | None = None) -> None:
        self._found.append(Use(path, f"{file_of(self._module)}:{node.lineno}", call, self._instead.get(path)))
