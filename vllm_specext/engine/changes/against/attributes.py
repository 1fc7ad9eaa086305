"""What our own source reads of vLLM's objects: of those that annotations name, and of what classes of ours inherit.

An annotation is followed through our own classes: ``step.batch.input_ids`` is ``InputBatch.input_ids``, where ``step``
is annotated with our ``Step`` and its ``batch`` with vLLM's ``InputBatch``. In a function that stands in the place of a
method of vLLM's (``@replaces``), ``self`` is an object of that method's class. Nothing is known of other objects.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from vllm_specext.engine.changes.against.definitions import Definition, Definitions
from vllm_specext.engine.changes.against.facts import decorator_names
from vllm_specext.engine.changes.against.syntax import FUNCTIONS, dotted_name, statements
from vllm_specext.engine.changes.against.tree import PACKAGE, Module, Tree
from vllm_specext.engine.changes.against.uses import Function, Use, file_of, vllm_bases


@dataclass(frozen=True)
class _Theirs:
    """Objects of classes of vLLM's, nearest first."""

    classes: tuple[str, ...]


Kind = Definition | _Theirs
"""A class of ours, or vLLM's."""


def attribute_uses(tree: Tree) -> list[Use]:
    """Every attribute of an object of vLLM's that is read in a tree of ours, once."""
    reader = _Reader(tree)
    for name in tree.modules:
        module = tree.module(name)
        assert module is not None
        for node in statements(module.body):
            reader.read(module, node, {}, None)
    first = {use.path: use for use in reversed(reader.found)}
    return [use for use in dict.fromkeys(reader.found) if first[use.path] is use]


class _Reader:
    def __init__(self, tree: Tree) -> None:
        self._definitions = Definitions(tree)
        self.found: list[Use] = []

    def read(self, module: Module, node: ast.AST, known: Mapping[str, Kind], of: Kind | None) -> None:
        """Note what is read in ``node``. ``known``: names of objects; ``of``: the class of ``self`` in functions."""
        if isinstance(node, ast.ClassDef):
            owner = self._definitions.attribute(Definition(module, None, is_module=True), node.name)
            own = owner if owner is not None and owner.node is node else None
            for each in node.body:
                self.read(module, each, known, own)
            return
        if isinstance(node, FUNCTIONS):
            for decorator in node.decorator_list:
                self.read(module, decorator, known, of)
            replaced = _replaced_class(node)
            of = of if replaced is None or of is not None else _Theirs((replaced,))
            arguments = {each.arg for each in ast.walk(node.args) if isinstance(each, ast.arg)}
            outside = {name: kind for name, kind in known.items() if name not in arguments}
            known = {**outside, **dict(self._parameters(module, node, of))}
            for each in node.body:
                self.read(module, each, known, of if isinstance(of, _Theirs) else None)
            return
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            self._kind(module, node, known)
            if dotted_name(node) is not None:
                return
        for child in ast.iter_child_nodes(node):
            self.read(module, child, known, of)

    def _parameters(self, module: Module, node: Function, of: Kind | None) -> Iterator[tuple[str, Kind]]:
        for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            if each.arg == "self" and of is not None:
                yield each.arg, of
            elif (kind := self._annotated(module, each.annotation)) is not None:
                yield each.arg, kind

    def _annotated(self, module: Module, annotation: ast.expr | None) -> Kind | None:
        """The class that an annotation names, alone or beside ``None``."""
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            return self._annotated(module, ast.parse(annotation.value, mode="eval").body)
        if isinstance(annotation, ast.BinOp) and isinstance(annotation.op, ast.BitOr):
            parts = [each for each in (annotation.left, annotation.right) if ast.unparse(each) != "None"]
            return self._annotated(module, parts[0]) if len(parts) == 1 else None
        if (name := dotted_name(annotation)) is None:
            return None
        found: Definition | None = Definition(module, None, is_module=True)
        for part in name.split("."):
            found = None if found is None else self._definitions.attribute(found, part)
        if found is None or isinstance(found.node, ast.ClassDef):
            return found
        foreign = found.foreign or ""
        return _Theirs((foreign,)) if foreign.partition(".")[0] == PACKAGE else None

    def _kind(self, module: Module, node: ast.expr, known: Mapping[str, Kind]) -> Kind | None:
        """The class of the object that ``node`` stands for. What is read of vLLM's on the way is noted."""
        if isinstance(node, ast.Name):
            return known.get(node.id)
        owner = self._kind(module, node.value, known) if isinstance(node, ast.Attribute) else None
        if owner is None:
            return None
        assert isinstance(node, ast.Attribute)
        if isinstance(owner, Definition):
            if (member := self._definitions.attribute(owner, node.attr)) is not None:
                return self._member(member, node.attr)
            owner = _Theirs(tuple(vllm_bases(self._definitions, owner)))
        paths = [f"{each}.{node.attr}" for each in owner.classes]
        if paths:
            instead = paths[1] if len(paths) > 1 else None
            self.found.append(Use(paths[0], f"{file_of(module)}:{node.lineno}", instead=instead))
        return None

    def _member(self, member: Definition, name: str) -> Kind | None:
        """The class of what a class of ours annotates as its own, by a field or a property."""
        if isinstance(member.node, FUNCTIONS):
            is_property = any(each.endswith("property") for each in decorator_names(member.node))
            return self._annotated(member.module, member.node.returns) if is_property else None
        for each in ast.walk(member.owner) if member.owner is not None else ():
            if isinstance(each, ast.AnnAssign) and dotted_name(each.target) in (name, f"self.{name}"):
                return self._annotated(member.module, each.annotation)
        return None


def _replaced_class(node: Function) -> str | None:
    """The class whose method a function is marked to replace or wrap."""
    for each in node.decorator_list:
        if isinstance(each, ast.Call) and dotted_name(each.func) == "replaces" and each.args:
            target = each.args[0]
            is_set = any(keyword.arg == "kind" for keyword in each.keywords)
            if isinstance(target, ast.Constant) and isinstance(target.value, str) and not is_set:
                owner = target.value.rpartition(".")[0]
                return owner if owner.rpartition(".")[2][:1].isupper() else None
    return None
