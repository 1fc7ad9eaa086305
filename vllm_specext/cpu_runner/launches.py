"""How launches reach bodies whose kernels take more in one version of vLLM than in another."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any


def for_launches(kernel: Any, body: Callable[..., None]) -> Callable[..., None]:
    """``body`` as launches of ``kernel`` may call it, which pass most by place: what is optional in the body goes by
    its name, wherever the kernel has it, with ``_ptr`` or without."""
    optional = {each.name for each in inspect.signature(body).parameters.values() if each.default is not each.empty}
    theirs = [name.removesuffix("_ptr") for name in _parameters(kernel)]
    named = [place for place, name in enumerate(theirs) if name in optional]
    if not named:
        return body

    @wraps(body)
    def launched(*arguments: Any, **others: Any) -> None:
        by_name = {theirs[place]: arguments[place] for place in named if place < len(arguments)}
        by_place = (each for place, each in enumerate(arguments) if place not in named)
        body(*by_place, **by_name, **others)

    return launched


def _parameters(kernel: Any) -> tuple[str, ...]:
    """Of Triton's kernel, or of the plain function that it is without Triton."""
    names = getattr(kernel, "arg_names", None)
    return tuple(inspect.signature(getattr(kernel, "func", kernel)).parameters if names is None else names)
