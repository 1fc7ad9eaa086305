"""What the syntax of a module or class binds, and the names in it."""

import ast
from collections.abc import Iterator
from functools import cache

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a module or class, those in ``if``, ``try`` and ``with`` too, and none in functions."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With | ast.For):
            for part in ("body", "orelse", "finalbody"):
                yield from statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from statements(handler.body)


def assigned(node: ast.stmt) -> set[str]:
    """The plain names that a statement assigns to or annotates."""
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    if not isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return set()
    return {each.id for target in targets if target for each in ast.walk(target) if isinstance(each, ast.Name)}


@cache  # asked of each class many times
def set_on_self(node: ast.ClassDef) -> frozenset[str]:
    """The attributes that a class's own methods set on ``self``."""
    return frozenset(
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    )


def dotted_name(node: ast.AST | None) -> str | None:
    """``a.b.c`` where an expression is just that."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := dotted_name(node.value)) is not None:
        return f"{before}.{node.attr}"
    return None
