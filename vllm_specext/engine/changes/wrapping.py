"""Replaces an attribute once, with the original at hand, and only by a function with a mark (``@replaces``) for it."""

import functools
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from vllm_specext.engine.changes.replacements import require_mark


def wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace ``owner.name`` by what ``make`` makes of it, unless that was done before."""
    require_mark(make, name)
    original = getattr(owner, name)
    if getattr(original, "__vllm_specext__", False):
        return
    replacement = functools.wraps(original)(make(original))
    replacement.__vllm_specext__ = True  # type: ignore[attr-defined]
    setattr(owner, name, replacement)


def wrap_property(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace the getter of the property ``owner.name`` in the same way."""
    require_mark(make, name)
    original = owner.__dict__[name].fget
    if not getattr(original, "__vllm_specext__", False):
        replacement = functools.wraps(original)(make(original))
        replacement.__vllm_specext__ = True  # type: ignore[attr-defined]
        setattr(owner, name, property(replacement))


def put(owner: Any, name: str, replacement: Callable) -> None:
    """Replace ``owner.name`` where the original is not needed."""
    require_mark(replacement, name)
    setattr(owner, name, replacement)


def when_loaded(module: str, then: Callable[[Any], None]) -> None:
    """Call ``then`` with a module, now or as soon as it is loaded, which importing it here would do too early."""
    if module in sys.modules:
        then(sys.modules[module])
    elif not any(isinstance(finder, _Watcher) and finder.module == module for finder in sys.meta_path):
        sys.meta_path.insert(0, _Watcher(module, then))


class _Watcher(MetaPathFinder):
    def __init__(self, module: str, then: Callable[[Any], None]) -> None:
        self.module, self._then = module, then

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != self.module:
            return None
        sys.meta_path.remove(self)
        spec = find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            self._then(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
