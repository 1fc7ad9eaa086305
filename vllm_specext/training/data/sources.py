"""What ``--data`` names: files, folders of files, and data sets on the hub."""

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from vllm_specext.errors import ConfigurationError
from vllm_specext.training.data.folder import STATS
from vllm_specext.training.data.json_rows import Numbered, json_rows
from vllm_specext.training.data.tables import hub_rows, parquet_rows

HUB = "hub:"
"""Before the name of a data set on the hub."""
HUB_NAME = re.compile(HUB + r"(\w[\w.-]*(?:/\w[\w.-]*)?)(?::(\w[\w.-]*))?")
SPLIT = "train"
"""The split of a data set of which none is named."""

READERS = {".jsonl": json_rows, ".json": json_rows, ".parquet": parquet_rows}
"""By the end of a file's name."""


def rows_of_all(data: Sequence[str]) -> Numbered:
    """The rows of all of ``data``, one of each in turn, so that the first rows are a part of each.

    ``ConfigurationError`` at once if one of them is not there or has another ending.
    """
    return _in_turn([rows_of(name) for name in data])


def rows_of(name: str) -> Numbered:
    """The rows of one file, of all files in a folder, or of ``hub:NAME[:SPLIT]``."""
    if name.startswith(HUB):
        return _hub(name)
    path = Path(name).expanduser()
    files = _files(path, name) if path.is_dir() else [path]
    for file in files:
        if not file.is_file():
            raise ConfigurationError(f"--data is {name!r}, which is neither a file nor a folder.")
        if file.suffix not in READERS:
            raise ConfigurationError(f"--data is {name!r}; expected a name that ends in {_endings()}.")
        if not file.stat().st_size:
            raise ConfigurationError(f"--data is {str(file)!r}, which is empty.")
    return chain.from_iterable(READERS[file.suffix](file) for file in files)


def _files(folder: Path, name: str) -> list[Path]:
    """In the order of their names. The figures beside prepared data are no rows."""
    found = sorted(file for file in folder.rglob("*") if file.suffix in READERS and file.name != STATS)
    if not found:
        raise ConfigurationError(f"--data is {name!r}, a folder without a file that ends in {_endings()}.")
    return found


def _hub(name: str) -> Numbered:
    found = HUB_NAME.fullmatch(name)
    if found is None:
        raise ConfigurationError(f"--data is {name!r}; expected hub:NAME or hub:NAME:SPLIT.")
    return hub_rows(found[1], found[2] or SPLIT)


def _endings() -> str:
    return ", ".join(READERS)


def _in_turn(sources: Sequence[Numbered]) -> Numbered:
    waiting: list[Iterator[tuple[str, dict]]] = list(sources)
    while waiting:
        for source in list(waiting):
            try:
                yield next(source)
            except StopIteration:
                waiting.remove(source)
