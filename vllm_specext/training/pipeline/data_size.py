"""How many rows ``--data`` has, where that is cheap to know."""

from collections.abc import Iterable
from pathlib import Path

from vllm_specext.errors import ConfigurationError

PIECE = 2**20


def count_rows(data: Iterable[str]) -> int | None:
    """All rows, or ``None`` if some of ``data`` would have to be read as a whole, or fetched, to count them.

    Lines are counted in ``.jsonl`` files, and headers say it of ``.parquet`` files. Raises ``ConfigurationError`` for a
    file that cannot be read.
    """
    total = 0
    for name in data:
        for path in _files(name):
            count = _count(path)
            if count is None:
                return None
            total += count
    return total


def _files(name: str) -> list[Path]:
    path = Path(name).expanduser()
    return sorted(path.rglob("*.*")) if path.is_dir() else [path]


def _count(path: Path) -> int | None:
    try:
        if path.suffix == ".jsonl":
            with path.open("rb") as file:
                return sum(piece.count(b"\n") for piece in iter(lambda: file.read(PIECE), b"")) + _open_end(path)
        if path.suffix == ".parquet":
            import pyarrow as pa
            from pyarrow import parquet

            try:
                return int(parquet.read_metadata(path).num_rows)
            except pa.ArrowException:
                return None  # reading it will say what is wrong
    except OSError as error:
        if not path.exists():
            return None
        raise ConfigurationError(f"--data is {str(path)!r}, which cannot be read: {error.strerror}.") from None
    return None


def _open_end(path: Path) -> int:
    """1 if the last line has no end."""
    with path.open("rb") as file:
        file.seek(-min(1, path.stat().st_size), 2)
        return int(file.read(1) not in (b"", b"\n"))
