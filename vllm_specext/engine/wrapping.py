"""Replacing an attribute once, with the original at hand."""

import functools
from collections.abc import Callable
from typing import Any


def wrap(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """Replace ``owner.name`` by what ``make`` makes of it, unless that was done before."""
    original = getattr(owner, name)
    if getattr(original, "__vllm_specext__", False):
        return
    replacement = functools.wraps(original)(make(original))
    replacement.__vllm_specext__ = True  # type: ignore[attr-defined]
    setattr(owner, name, replacement)


def wrap_property(owner: Any, name: str, make: Callable[[Callable], Callable]) -> None:
    """The same for a property and its getter."""
    original = owner.__dict__[name].fget
    if not getattr(original, "__vllm_specext__", False):
        replacement = functools.wraps(original)(make(original))
        replacement.__vllm_specext__ = True  # type: ignore[attr-defined]
        setattr(owner, name, property(replacement))
