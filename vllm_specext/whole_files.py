"""Files that are there as a whole or not at all, whenever the process or the machine stops."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """The path of a file to write in the place of ``path``, which it becomes at the end.

    Whatever is raised meanwhile leaves ``path`` as it was, and nothing beside it.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        _sync(part)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    _sync(path.parent)


def _sync(path: Path) -> None:
    """Have the system write what it still holds of a file or a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
