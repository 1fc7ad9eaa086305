"""Own time of functions in a running program: they are wrapped where they are found, and what a watched function spends
in other watched ones is theirs."""

import importlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any


@dataclass(frozen=True)
class Watched:
    """A function and the part of the program that its time belongs to."""

    part: str
    path: str
    """``module:name`` or ``module:Class.name``."""
    needs: frozenset[str] = frozenset()
    """What the program must be doing for the function to be called."""
    within: str = ""
    """A part outside of which calls do not count: their time is that of whoever calls."""
    given: tuple[tuple[str, Any], ...] = ()
    """Keyword arguments without which a call does not count."""

    def resolve(self) -> tuple[Any, str, Callable[..., Any]]:
        """What holds the function, its name there, and the function."""
        module, _, qualified = self.path.partition(":")
        *outer, name = qualified.split(".")
        owner: Any = importlib.import_module(module)
        for attribute in outer:
            owner = getattr(owner, attribute)
        return owner, name, getattr(owner, name)


class Stopwatch:
    """Seconds of ``clock`` and calls by part."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.called: set[Watched] = set()
        self._open: list[str] = []
        self._inner: list[float] = []

    def wrap(self, watched: Watched) -> None:
        owner, name, function = watched.resolve()
        setattr(owner, name, self._timed(watched, function))

    def clear(self) -> None:
        self.seconds.clear()
        self.calls.clear()
        self.called.clear()

    def _timed(self, watched: Watched, function: Callable[..., Any]) -> Callable[..., Any]:
        part, given = watched.part, dict(watched.given)

        @wraps(function)  # the plug-in looks at signatures when an engine starts
        def timed(*args: Any, **kwargs: Any) -> Any:
            elsewhere = watched.within and watched.within not in self._open
            if elsewhere or not given.items() <= kwargs.items():
                return function(*args, **kwargs)
            self._open.append(part)
            self._inner.append(0.0)
            begun = self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                took = self.clock() - begun
                self._open.pop()
                self.seconds[part] += took - self._inner.pop()
                self.calls[part] += 1
                self.called.add(watched)
                if self._inner:
                    self._inner[-1] += took

        return timed
