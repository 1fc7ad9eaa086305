"""Reads from the source what is assigned to attributes of objects, and by which function.

What it sees: ``x.a = ...``, ``x.a += ...``, ``del x.a``, ``setattr`` and ``delattr``; ``x.a[i] = ...`` and calls that
change a list, dictionary or tensor (``x.a.append``, ``x.a.copy_``); the same with a name that is imported from vLLM in
the place of ``x.a``, and calls of such a name that register something; what is handed to ``wrap``, ``wrap_property``,
``put`` and the table of the CPU runner, ``{(owner, name): function}``. It does not know the type of ``x``: every object
counts as vLLM's but the ``self`` of a method. So whoever assigns to another object of ours has to say so (``OURS`` in
``test_replacements.py``).

What it does not see: attributes that a subclass of vLLM's sets on its own ``self``; changes under a local name
(``a = x.a; a[i] = ...``) or by a function that gets the object; ``vars(x)[...]`` and ``exec``. Overridden methods need
no mark: ``test_guard.py`` holds them to ``engine/changes/relied_on.py``.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vllm_specext.engine.changes.catalogue import marks_of

WRAPPERS = ("wrap", "wrap_property", "put")
DYNAMIC = "?"
"""The attribute's name is computed."""
MUTATORS = {"add", "append", "clear", "discard", "extend", "insert", "pop", "remove", "setdefault", "update"}
NOT_SEARCHED = ("demo", "kernels", "training", "tree", "remote")
"""Folders of the package whose files import nothing of vLLM's, so that they have no object of vLLM's to change.
``benchmarks`` is not searched either: it is no part of the package, and runs in no server."""


@dataclass(frozen=True)
class Assignment:
    file: str
    function: str
    owner: str
    """As the source has it."""
    attribute: str
    line: int
    marks: frozenset[str]
    """The attributes that the function, or one around it, is marked to replace."""


@dataclass(frozen=True)
class Handed:
    """What a wrapper is asked to replace."""

    attribute: str
    function: str


class Reader(ast.NodeVisitor):
    def __init__(self, file: str, constants: dict[str, str]) -> None:
        self.file, self.constants = file, constants
        self.assignments: list[Assignment] = []
        self.handed: list[Handed] = []
        self.marked: list[tuple[str, str]] = []
        """Function and attribute, of every mark."""
        self.methods: set[str] = set()
        self.imports_vllm = False
        self._vllms: set[str] = set()
        """Names that are imported from vLLM, anywhere in the file."""
        self._around: list[ast.ClassDef | ast.FunctionDef] = []
        self._marks: list[frozenset[str]] = [frozenset()]

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._around.append(node)
        self.generic_visit(node)
        self._around.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        attributes = frozenset(attribute for call in marks_of(node) for attribute in targets(call))
        self.marked += [(node.name, attribute) for attribute in attributes]
        if self._around and isinstance(self._around[-1], ast.ClassDef):
            self.methods.add(node.name)
        self._around.append(node)
        self._marks.append(self._marks[-1] | attributes)
        self.generic_visit(node)
        self._marks.pop()
        self._around.pop()

    def visit_Import(self, node: ast.Import) -> None:
        self._note_imports({each.name: each.asname or each.name.partition(".")[0] for each in node.names})

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._note_imports({f"{node.module}.{each.name}": each.asname or each.name for each in node.names})

    def _note_imports(self, names: dict[str, str]) -> None:
        found = {own for name, own in names.items() if name.partition(".")[0] == "vllm"}
        self._vllms |= found
        self.imports_vllm |= bool(found)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if not isinstance(node.ctx, ast.Load):
            self._note_contents(node.value)
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if not isinstance(node.ctx, ast.Load) and not self._is_own(node.value):
            self._note(node, ast.unparse(node.value), node.attr)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func).rpartition(".")[2]
        if called in ("setattr", "delattr", "__setattr__"):
            self._note(node, ast.unparse(node.args[0]), self._name(node.args[1]))
        elif called in WRAPPERS and len(node.args) == 3:
            name = self._name(node.args[1])
            if name != DYNAMIC:
                self.handed.append(Handed(name, ast.unparse(node.args[2]).rpartition(".")[2]))
        elif called.startswith("register") and ast.unparse(node.func).partition(".")[0] in self._vllms:
            self._note(node, ast.unparse(node.func).rpartition(".")[0], called)
        elif isinstance(node.func, ast.Attribute) and (called in MUTATORS or re.search(r"[^_]_$", called)):
            self._note_contents(node.func.value)
        self.generic_visit(node)

    def visit_Dict(self, node: ast.Dict) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Tuple) and len(key.elts) == 2 and (name := self._name(key.elts[1])) != DYNAMIC:
                self.handed.append(Handed(name, ast.unparse(value).rpartition(".")[2]))
        self.generic_visit(node)

    def _note_contents(self, changed: ast.expr) -> None:
        """What is in ``changed`` is changed, a list, dictionary or tensor."""
        while isinstance(changed, ast.Subscript):
            changed = changed.value
        if isinstance(changed, ast.Attribute) and not self._is_own(changed.value):
            self._note(changed, ast.unparse(changed.value), changed.attr)
        elif isinstance(changed, ast.Name) and changed.id in self._vllms:
            self._note(changed, "", changed.id)

    def _is_own(self, owner: ast.expr) -> bool:
        """``self`` of a method; in a function that becomes a method of vLLM's, ``self`` is vLLM's object."""
        if not isinstance(owner, ast.Name) or owner.id != "self":
            return False
        of_self = [
            place
            for place, each in enumerate(self._around)
            if isinstance(each, ast.FunctionDef) and "self" in {argument.arg for argument in each.args.args}
        ]
        return bool(of_self) and of_self[-1] > 0 and isinstance(self._around[of_self[-1] - 1], ast.ClassDef)

    def _name(self, node: ast.expr) -> str:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        return self.constants.get(node.id, DYNAMIC) if isinstance(node, ast.Name) else DYNAMIC

    def _note(self, node: ast.expr, owner: str, attribute: str) -> None:
        functions = [each.name for each in self._around if isinstance(each, ast.FunctionDef)]
        found = Assignment(
            self.file, functions[-1] if functions else "", owner, attribute, node.lineno, self._marks[-1]
        )
        self.assignments.append(found)


def targets(call: ast.Call) -> list[str]:
    also = next((ast.literal_eval(each.value) for each in call.keywords if each.arg == "also"), ())
    return [target.rpartition(".")[2] for target in (ast.literal_eval(call.args[0]), *also)]


def read(root: Path) -> Iterator[Reader]:
    """The files of ``root`` but for ``NOT_SEARCHED``."""
    for file in sorted(root.rglob("*.py")):
        if file.relative_to(root).parts[0] not in NOT_SEARCHED:
            yield read_file(file, root)


def read_file(file: Path, root: Path) -> Reader:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    constants = {
        each.targets[0].id: each.value.value
        for each in tree.body
        if isinstance(each, ast.Assign)
        and isinstance(each.targets[0], ast.Name)
        and isinstance(each.value, ast.Constant)
        and isinstance(each.value.value, str)
    }
    reader = Reader(file.relative_to(root).as_posix(), constants)
    reader.visit(tree)
    return reader


def unlisted(readers: list[Reader], ours: set[tuple[str, str, str]]) -> list[str]:
    """Assignments and wraps that no mark names, as ``file:line owner.attribute``."""
    found = [
        f"{each.file}:{each.line} {each.owner}.{each.attribute}"
        for reader in readers
        for each in reader.assignments
        if each.attribute not in each.marks and (each.file, each.owner, each.attribute) not in ours
    ]
    marked = {mark for reader in readers for mark in reader.marked}
    wraps = (
        f"{reader.file} {each.attribute} by {each.function}"
        for reader in readers
        for each in reader.handed
        if (each.function, each.attribute) not in marked
    )
    return found + list(wraps)


def unmade(readers: list[Reader]) -> list[str]:
    """Marks that no assignment, wrap or override follows from, as ``file: function attribute``."""
    handed = {(each.function, each.attribute) for reader in readers for each in reader.handed}
    return [
        f"{reader.file}: {function} {attribute}"
        for reader in readers
        for function, attribute in reader.marked
        if (function, attribute) not in handed
        and not (function == attribute and function in reader.methods)
        and not any(attribute == each.attribute and attribute in each.marks for each in reader.assignments)
    ]
