"""The source of a vLLM: an unpacked wheel, the folder of the package ``vllm`` itself, or a wheel's file."""

import ast
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path, PurePosixPath

from vllm_specext.errors import ConfigurationError

PACKAGE = "vllm"


@dataclass(frozen=True, eq=False)
class Module:
    name: str
    body: list[ast.stmt]
    is_package: bool

    def absolute(self, node: ast.ImportFrom) -> str:
        """The module that a ``from ... import`` in this one names."""
        if not node.level:
            return str(node.module)
        parts = self.name.split(".")
        parts = parts[: len(parts) - node.level + self.is_package]
        return ".".join([*parts, node.module] if node.module else parts)


class Tree:
    def __init__(self, files: dict[str, Callable[[], str]], root: str = PACKAGE) -> None:
        """``files`` are the Python files of the package ``root``, by their paths with ``root/`` in front, and how each
        is read."""
        self.root, self._files = root, files
        self._parsed: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module of this dotted name, ``None`` where there is none."""
        if name not in self._parsed:
            path = name.replace(".", "/")
            found = next((each for each in (f"{path}/__init__.py", f"{path}.py") if each in self._files), None)
            if found is None:
                # A folder without a file of its own is a package too.
                is_folder = path in self._folders
                self._parsed[name] = Module(name, [], True) if is_folder else None
            else:
                body = _parsed(found, self._files[found]())
                self._parsed[name] = Module(name, body, found.endswith("/__init__.py"))
        return self._parsed[name]

    @property
    def modules(self) -> list[str]:
        """The dotted names of all modules."""
        names = (file.removesuffix(".py").removesuffix("/__init__") for file in self._files)
        return sorted(name.replace("/", ".") for name in names)

    @cached_property
    def _folders(self) -> set[str]:
        return {str(folder) for file in self._files for folder in PurePosixPath(file).parents}

    @cached_property
    def version(self) -> str:
        """What vLLM calls itself, ``unknown`` where it does not."""
        module = self.module(f"{PACKAGE}._version")
        for node in module.body if module else []:
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
                names = {target.id for target in node.targets if isinstance(target, ast.Name)}
                if "__version__" in names:
                    return str(node.value.value)
        return "unknown"


def _parsed(file: str, text: str) -> list[ast.stmt]:
    try:
        return ast.parse(text).body
    except SyntaxError as error:
        python = ".".join(map(str, sys.version_info[:2]))
        raise ConfigurationError(f"{file}:{error.lineno} cannot be read by Python {python}: {error.msg}.") from None


def open_tree(path: Path) -> Tree:
    """Read what ``path`` holds. ``ConfigurationError`` where that is no vLLM."""
    try:
        package = path / PACKAGE if (path / PACKAGE).is_dir() else path
        files = _in_wheel(path) if path.is_file() else _in_folder(package)
    except (OSError, zipfile.BadZipFile) as error:
        raise ConfigurationError(f"--against is {str(path)!r}, which cannot be read: {error}.") from None
    if f"{PACKAGE}/__init__.py" not in files or f"{PACKAGE}/config/__init__.py" not in files:
        raise ConfigurationError(
            f"--against is {str(path)!r}, which holds no vLLM: a wheel's file, the folder that it was unpacked into, "
            "or the folder of the package vllm are allowed."
        )
    return Tree(files)


def installed_tree() -> Tree | None:
    """The vLLM that this Python would import, ``None`` where there is none."""
    spec = PathFinder.find_spec(PACKAGE)
    return None if spec is None or spec.origin is None else open_tree(Path(spec.origin).parent)


def tree_of(package: Path, root: str) -> Tree:
    """The source of any package, which is called ``root``."""
    return Tree(_in_folder(package, root), root)


def _in_folder(package: Path, root: str = PACKAGE) -> dict[str, Callable[[], str]]:
    return {f"{root}/{file.relative_to(package).as_posix()}": _reader(file) for file in sorted(package.rglob("*.py"))}


def _reader(file: Path) -> Callable[[], str]:
    return lambda: file.read_text(encoding="utf-8")


def _in_wheel(path: Path) -> dict[str, Callable[[], str]]:
    wheel = zipfile.ZipFile(path)
    names: Iterator[str] = (name for name in wheel.namelist() if name.startswith(f"{PACKAGE}/"))
    return {name: _member(wheel, name) for name in names if name.endswith(".py")}


def _member(wheel: zipfile.ZipFile, name: str) -> Callable[[], str]:
    return lambda: wheel.read(name).decode("utf-8")
