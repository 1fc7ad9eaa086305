"""Finds what a dotted path stands for in a tree of source: through re-exports, base classes and attributes.

What Python does while it runs is followed as far as the source shows it: imports at any depth of a module's own
statements, ``name = other``, the tables of names that modules load when they are asked for, and what methods set on
``self``. Of a condition both branches count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from vllm_specext.engine.changes.against.syntax import FUNCTIONS, assigned, dotted_name, set_on_self, statements
from vllm_specext.engine.changes.against.tree import Module, Tree

Node = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
FROM_OUTSIDE = {"torch.nn.Module": ("forward",)}
"""What classes of vLLM have from another package's class, as far as we use it."""


@dataclass(frozen=True, eq=False)
class Definition:
    """A function, a class or another name; a module where ``node`` is ``None`` and ``is_module``."""

    module: Module
    node: Node | None
    """``None`` for a value and for a module."""
    owner: ast.ClassDef | None = None
    """The class that a method or property stands in."""
    is_module: bool = False
    foreign: str | None = None
    """The dotted path of what is imported from another package, of which no more is known."""


class Definitions:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree

    def find(self, path: str) -> Definition | None:
        """What ``module:name.name`` or ``module.name.name`` stands for, ``None`` where the tree has nothing there."""
        parts = path.replace(":", ".").split(".")
        for length in range(len(parts), 0, -1):
            module = self._tree.module(".".join(parts[:length]))
            if module is not None:
                found: Definition | None = Definition(module, None, is_module=True)
                for name in parts[length:]:
                    found = None if found is None else self.attribute(found, name)
                return found
        return None

    def attribute(self, owner: Definition, name: str) -> Definition | None:
        """The attribute ``name`` of a module or class."""
        if owner.is_module:
            return self._of_module(owner.module, name, set())
        if isinstance(owner.node, ast.ClassDef):
            return self._of_class(owner, name, set())
        # What an object or another package has, the source does not tell.
        foreign = None if owner.foreign is None else f"{owner.foreign}.{name}"
        return None if owner.node is not None else Definition(owner.module, None, foreign=foreign)

    def _of_module(self, module: Module, name: str, seen: set[tuple[str, str]]) -> Definition | None:
        if (module.name, name) in seen:
            return None
        seen.add((module.name, name))
        found = [one for one in self._bindings(module, name, seen) if one is not None]
        # A value or another package's name is the last choice: a function in one branch stands for both.
        best = next((one for one in found if one.node is not None or one.is_module), found[0] if found else None)
        if best is not None:
            return best
        submodule = self._tree.module(f"{module.name}.{name}")
        return None if submodule is None else Definition(submodule, None, is_module=True)

    def _bindings(self, module: Module, name: str, seen: set[tuple[str, str]]) -> Iterator[Definition | None]:
        asked = False
        for node in statements(module.body):
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
                if node.name == name:
                    yield Definition(module, node)
                asked |= node.name == "__getattr__"
            elif isinstance(node, ast.ImportFrom):
                yield from self._imported(module, node, name, seen)
            elif isinstance(node, ast.Import):
                for alias in node.names:
                    if (alias.asname or alias.name.partition(".")[0]) == name:
                        yield self._by_name(module, alias.name if alias.asname else name)
            elif name in assigned(node):
                yield self._value(module, getattr(node, "value", None), seen)
        if asked:
            yield from self._from_table(module, name)

    def _imported(
        self, module: Module, node: ast.ImportFrom, name: str, seen: set[tuple[str, str]]
    ) -> Iterator[Definition | None]:
        source = module.absolute(node)
        for alias in node.names:
            if alias.name != "*" and (alias.asname or alias.name) != name:
                continue
            if source.partition(".")[0] != self._tree.root:
                if alias.name != "*":
                    yield Definition(module, None, foreign=f"{source}.{alias.name}")
            elif (other := self._tree.module(source)) is not None:
                yield self._of_module(other, name if alias.name == "*" else alias.name, seen)

    def _by_name(self, module: Module, name: str) -> Definition | None:
        if name.partition(".")[0] != self._tree.root:
            return Definition(module, None, foreign=name)
        found = self._tree.module(name)
        return None if found is None else Definition(found, None, is_module=True)

    def _value(self, module: Module, value: ast.expr | None, seen: set[tuple[str, str]]) -> Definition:
        if (dotted := dotted_name(value)) is not None:
            first, *rest = dotted.split(".")
            found = self._of_module(module, first, seen)
            for name in rest:
                found = None if found is None else self.attribute(found, name)
            if found is not None:
                return found
        return Definition(module, None)

    def _from_table(self, module: Module, name: str) -> Iterator[Definition | None]:
        """A module that loads names when they are asked for has a dictionary of them."""
        for node in ast.walk(ast.Module(module.body, [])):
            if not isinstance(node, ast.Dict):
                continue
            for key, value in zip(node.keys, node.values, strict=True):
                if isinstance(key, ast.Constant) and key.value == name:
                    place = value.value if isinstance(value, ast.Constant) else None
                    target = None
                    if isinstance(place, str):
                        absolute = f"{module.name}{place}" if place.startswith(".") else place
                        target = self.find(absolute if ":" in place else f"{absolute}:{name}")
                    yield target or Definition(module, None)

    def _of_class(self, owner: Definition, name: str, seen: set[int]) -> Definition | None:
        node = owner.node
        assert isinstance(node, ast.ClassDef)
        if id(node) in seen:
            return None
        seen.add(id(node))
        for each in statements(node.body):
            if isinstance(each, (*FUNCTIONS, ast.ClassDef)) and each.name == name:
                return Definition(owner.module, each, node)
            if name in assigned(each):
                return Definition(owner.module, None, node)
        if name in set_on_self(node):
            return Definition(owner.module, None, node)
        for base in self.bases(owner):
            if base.foreign is not None and name in FROM_OUTSIDE.get(base.foreign, ()):
                return Definition(owner.module, None, foreign=f"{base.foreign}.{name}")
            if base.node is not None and (found := self._of_class(base, name, seen)) is not None:
                return found
        return None

    def bases(self, owner: Definition) -> Iterator[Definition]:
        """The classes that a class is derived from, as far as the tree has them."""
        assert isinstance(owner.node, ast.ClassDef)
        for base in owner.node.bases:
            expression = base.value if isinstance(base, ast.Subscript) else base
            found = self._value(owner.module, expression, set())
            if isinstance(found.node, ast.ClassDef) or found.foreign is not None:
                yield found
