"""Which module of the package imports which, read from the source: imports inside functions and for types count too."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "vllm_specext"


def modules() -> list[Path]:
    """The package's files, relative to it."""
    return sorted(file.relative_to(PACKAGE) for file in PACKAGE.rglob("*.py"))


@cache
def arrows() -> dict[Path, set[Path]]:
    """For each of ``modules``, the others of them that it imports."""
    return {module: set(imported(module)) - {module} for module in modules()}


def imported(module: Path) -> Iterator[Path]:
    """The package's files that ``module`` imports."""
    for name, member in names_in(module):
        if name.partition(".")[0] == PACKAGE.name:
            inside = PACKAGE.joinpath(*name.split(".")[1:])
            yield file_of(inside / member) or file_of(inside) or Path(name)


def outside(module: Path) -> set[str]:
    """The top-level names of other packages that ``module`` imports."""
    return {name.partition(".")[0] for name, _ in names_in(module)} - {PACKAGE.name}


@cache
def names_in(module: Path) -> list[tuple[str, str]]:
    """Every import of ``module`` as a dotted name and the member that is taken from it, which may be empty."""
    found = []
    for node in ast.walk(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += [(alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found += [(node.module, alias.name) for alias in node.names]
    return found


def file_of(path: Path) -> Path | None:
    """The file of the module or package at ``path``, relative to the package; ``None`` where there is none."""
    for file in (path.with_name(f"{path.name}.py"), path / "__init__.py"):
        if file.is_file():
            return file.relative_to(PACKAGE)
    return None


def folder_of(module: Path) -> str:
    """The folder of a module, or the file itself where it is in no folder. A kernel's folder is part of ``kernels``."""
    parts = module.parent.parts
    return module.as_posix() if not parts else "kernels" if parts[0] == "kernels" else "/".join(parts)


def between_folders() -> dict[str, set[str]]:
    """For each folder, the others that its files import from."""
    found: dict[str, set[str]] = {}
    for module, others in arrows().items():
        folder = folder_of(module)
        found.setdefault(folder, set()).update({folder_of(other) for other in others} - {folder})
    return found


def circles(graph: Mapping[str, set[str]]) -> list[set[str]]:
    """The largest groups of nodes of which each leads to all others."""
    reached = {node: _reach(graph, node) for node in graph}
    groups = ({other for other in reached[node] if node in reached.get(other, set())} for node in graph)
    return [set(group) for group in {frozenset(group) for group in groups if group}]


def _reach(graph: Mapping[str, set[str]], start: str) -> set[str]:
    """Nodes that a way leads to from ``start``; ``start`` itself where there is a circle."""
    found: set[str] = set()
    left = set(graph.get(start, ()))
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left |= graph.get(node, set())
    return found
