"""Every name of torchvision, and nothing that works: for models that see, whose classes import it, and which see
nothing in these tests. The CPU flavour of the set-up has no torchvision."""

from typing import Any


class _Names(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return cls


class Nothing(metaclass=_Names):
    pass


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return Nothing
