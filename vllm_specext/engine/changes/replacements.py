"""``@replaces``: stands above every function that replaces, sets or overrides something in vLLM, and says why.

The marks are the one list of what we change in vLLM. ``catalogue.py`` reads them from the source. ``wrapping.py`` makes
no replacement whose function has no mark for it, and ``tests/unit/test_replacements.py`` finds assignments without one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

Replaced = TypeVar("Replaced", bound=Callable[..., Any])

Kind = Literal["replaced", "set", "added", "registered"]
"""``replaced``: a function, property or name gives way to ours, or is overridden in a subclass of vLLM's choice.
``set``: vLLM's objects get another value for an attribute of theirs.
``added``: vLLM's objects or modules get an attribute that they lack.
``registered``: vLLM's own registry gets something of ours."""


@dataclass(frozen=True)
class Replacement:
    name: str
    target: str
    """``module.attribute``, or ``module.class.attribute``."""
    kind: Kind
    why: str
    how: str
    upstream: str
    until: str
    signature: str | None
    """The parameters' names. ``None`` where the target is no function, or where no parameter matters."""
    also: tuple[str, ...]
    """Other modules' names for the same thing, which are replaced too."""
    made_by: str
    """The file below ``vllm_specext`` and the function with the mark."""
    wraps: bool
    """Whether ours gets the original, and does not stand in its place alone."""

    @property
    def on_a_cpu_only(self) -> bool:
        return self.made_by.startswith("cpu_runner/")


def replaces(
    target: str,
    *,
    name: str,
    why: str,
    how: str,
    upstream: str,
    until: str,
    signature: str | None = None,
    kind: Kind = "replaced",
    also: tuple[str, ...] = (),
) -> Callable[[Replaced], Replaced]:
    """Mark the function that makes a replacement. The arguments are those of ``Replacement``; all are literals, because
    the catalogue reads them without running anything."""

    def mark(function: Replaced) -> Replaced:
        function.__replaces__ = (*targets_of(function), target, *also)  # type: ignore[attr-defined]
        return function

    return mark


def targets_of(function: Callable[..., Any]) -> tuple[str, ...]:
    """What ``function`` is marked to replace."""
    return getattr(function, "__replaces__", ())


def require_mark(function: Callable[..., Any], attribute: str) -> None:
    """Raise ``LookupError`` unless ``function`` is marked to replace something with this attribute's name."""
    if attribute not in {target.rpartition(".")[2] for target in targets_of(function)}:
        raise LookupError(f"{attribute!r} is replaced by {function.__qualname__}, but no @replaces above it says so.")
