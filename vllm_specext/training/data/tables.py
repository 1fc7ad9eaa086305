"""Rows of tables: parquet files, and data sets on the hub.

A table has every column in every row, and every key of a message or a tool. What is null was not there, and templates
shall not see it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vllm_specext.errors import ConfigurationError
from vllm_specext.speculative_config import short
from vllm_specext.training.data.formats import COLUMNS, EXPECTED
from vllm_specext.training.data.json_rows import Numbered

MAX_GROUP = 2**32
"""Bytes, unpacked, of the largest row group of a file. A part of one is read at once."""

ROWS_AT_ONCE = 256


def parquet_rows(path: Path) -> Numbered:
    """The rows of a file, with those of its columns that are read. ``ConfigurationError`` if there is none."""
    import pyarrow as pa
    from pyarrow import parquet

    number = 0
    try:
        with parquet.ParquetFile(path) as file:
            names = file.schema_arrow.names
            columns = [name for name in names if name in COLUMNS]
            if not columns:
                raise ConfigurationError(f"{path} has the columns {short(', '.join(names))}; {EXPECTED}")
            for group in range(file.metadata.num_row_groups):
                size = file.metadata.row_group(group).total_byte_size
                if not 0 <= size <= MAX_GROUP:
                    raise ConfigurationError(
                        f"{path} has {size} bytes in row group {group}; expected at most {MAX_GROUP}."
                    )
            for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns):
                for row in batch.to_pylist():
                    number += 1
                    yield f"{path} row {number}", without_nulls(row)
    except (OSError, pa.ArrowException) as error:
        raise ConfigurationError(f"{path} is not a parquet file that can be read ({type(error).__name__}).") from None


def hub_rows(name: str, split: str) -> Numbered:
    """The rows of a data set's split, as they arrive: nothing is stored, and no code of the data set runs."""
    place = f"hub:{name}:{split}"
    try:
        for number, row in enumerate(_streamed(name, split), 1):
            yield f"{place} row {number}", without_nulls({key: row[key] for key in row if key in COLUMNS} or row)
    except ConfigurationError:
        raise
    # What `datasets` raises is of many classes: a name that is not there, a split, a connection, a damaged file.
    except Exception as error:
        raise ConfigurationError(f"{place} cannot be read: {type(error).__name__} ({_first_line(error)}).") from None


def _streamed(name: str, split: str) -> Iterator[dict[str, Any]]:
    import datasets

    return iter(datasets.load_dataset(name, split=split, streaming=True))


def _first_line(error: Exception) -> str:
    return short(next(iter(str(error).splitlines()), "no message").rstrip("."))


def without_nulls(value: Any) -> Any:
    """``value`` without the keys, at any depth, whose value is null."""
    if isinstance(value, dict):
        return {key: without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [without_nulls(inner) for inner in value] if isinstance(value, list) else value
